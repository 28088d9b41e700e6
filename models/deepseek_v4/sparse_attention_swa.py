"""Sliding-window decode attention over gathered cache rows, with a sink, then the inverse rotation.

    row_k   = kv_cache[swa_indices[t, k]] for k < swa_lens[t], where the index is not -1         (key and value alike)
    s[h, k] = (q[t, h] . row_k) * softmax_scale
    m[h]    = max(attn_sink[h], max_k s[h, k]);  l[h] = exp(attn_sink[h] - m[h]) + sum_k exp(s[h, k] - m[h])
    o[h]    = sum_k round_bf16(exp(s[h, k] - m[h])) * row_k / l[h]
    attn_out[t, h] = inverse_rope(round_bf16(o[h]))

q, attn_out [tokens, heads, head_dim] bf16; kv_cache [pages, page_tokens, head_dim] bf16, its flat rows named by
swa_indices [tokens, window] int32 and swa_lens [tokens] int32; attn_sink [heads] fp32. The inverse rotation turns the
last rope_dim lanes back at the token's own position. fp32 between the products; `round_bf16` and the output round to
bf16. A token that sees no row gives 0. Source: DeepseekV4Attention in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.arithmetic import round_bf16
from golden.comparators import Close
from golden.specs import Role, ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.caches import kv_pool, metadata_specs
from models.deepseek_v4.fixtures import activation, attention_sinks, config_of, rope_specs
from models.deepseek_v4.golden_parts import rotate_tail, token_rotation
from models.kernels.rope import launch_rotate_tail
from models.kernels.tiles import tile


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    q, indices, sink = t["q"].float(), t["swa_indices"].long(), t["attn_sink"]
    seen = (torch.arange(indices.shape[1]) < t["swa_lens"][:, None]) & (indices >= 0)
    pool = t["kv_cache"].view(-1, q.shape[-1])
    rows = torch.where(seen[..., None], pool[indices.clamp(min=0)].float(), 0.0)

    s = torch.einsum("thd,tkd->thk", q, rows) * t["softmax_scale"]
    s = s.masked_fill(~seen[:, None], -torch.inf)
    m = torch.maximum(s.amax(-1), sink)
    p = torch.exp(s - m[..., None])
    denominator = torch.exp(sink - m) + p.sum(-1)
    if precision == "device":
        p = round_bf16(p)
    o = torch.einsum("thk,tkd->thd", p, rows) / denominator[..., None]
    if precision == "device":
        o = round_bf16(o)
    o = rotate_tail(o, *token_rotation(t, precision=precision), inverse=True)
    return {"attn_out": o if precision == "exact" else o.bfloat16()}


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's output; a composed stage takes it as scratch."""
    config = config_of(case)
    return (TensorSpec("attn_out", (case.tokens, config.heads, config.head_dim), torch.bfloat16, role=role),)


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    return (
        activation(case, "q", (config.heads, config.head_dim)),
        kv_pool(case, holds="step", role="in"),
        *metadata_specs(case, "swa_indices", "swa_lens"),
        attention_sinks(case),
        *rope_specs(case, config.swa_rope),
        ScalarSpec("softmax_scale", config.softmax_scale, low=0.0),
        *output_specs(case),
    )


@triton.jit
def sparse_attention_kernel(
    q_ptr, cache_ptr, index_ptr, length_ptr, sink_ptr, out_ptr, softmax_scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    lane = tl.arange(0, WIDTH)
    q_row = (token * HEADS + head[:, None]) * WIDTH
    q = tl.load(q_ptr + q_row + lane[None, :])
    m = tl.load(sink_ptr + head)
    total = tl.full([BH], 1.0, tl.float32)  # the sink's own share, exp(sink - m)
    o = tl.zeros([BH, WIDTH], tl.float32)
    length = tl.load(length_ptr + token)
    for start in range(0, length, BW):
        k = start + tl.arange(0, BW)
        index = tl.load(index_ptr + token * WINDOW + k)
        seen = (k < length) & (index >= 0)
        # A masked lane of a gather is read all the same, so its index is clamped; the mask makes the row 0, because a
        # NaN in the row clamped to would survive a probability of 0. int64: a pool may pass 2^31 elements.
        row = tl.where(seen, index, 0).to(tl.int64)[:, None] * WIDTH
        kv = tl.load(cache_ptr + row + lane[None, :], mask=seen[:, None], other=0.0)
        s = tl.dot(q, tl.trans(kv)) * softmax_scale
        s = tl.where(seen[None, :], s, -1e30)
        m_next = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_next[:, None])
        shrink = tl.exp(m - m_next)
        total = total * shrink + tl.sum(p, 1)
        o = o * shrink[:, None] + tl.dot(p.to(tl.bfloat16), kv)
        m = m_next
    tl.store(out_ptr + q_row + lane[None, :], (o / total[:, None]).to(tl.bfloat16))


def launch(
    *,
    q: Tensor,
    kv_cache: Tensor,
    swa_indices: Tensor,
    swa_lens: Tensor,
    attn_sink: Tensor,
    position_ids: Tensor,
    rope_cos: Tensor,
    rope_sin: Tensor,
    softmax_scale: float,
    attn_out: Tensor,
) -> None:
    """Write attn_out. Raises TypeError or ValueError naming the argument that does not fit."""
    tokens, heads, head_dim = check_tensor("q", q, shape=(None, None, None), dtype=torch.bfloat16).shape
    device = q.device
    check_tensor("kv_cache", kv_cache, shape=(None, None, head_dim), dtype=torch.bfloat16, device=device)
    check_tensor("swa_indices", swa_indices, shape=(tokens, None), dtype=torch.int32, device=device)
    check_tensor("swa_lens", swa_lens, shape=(tokens,), dtype=torch.int32, device=device)
    check_tensor("attn_sink", attn_sink, shape=(heads,), dtype=torch.float32, device=device)
    check_tensor("position_ids", position_ids, shape=(tokens,), dtype=torch.int32, device=device)
    check_tensor("rope_cos", rope_cos, shape=(None, None), dtype=torch.bfloat16, device=device)
    check_tensor("rope_sin", rope_sin, shape=rope_cos.shape, dtype=torch.bfloat16, device=device)
    check_tensor("attn_out", attn_out, shape=q.shape, dtype=torch.bfloat16, device=device)
    if not tokens:
        return
    # 16 heads by 32 rows of 512 lanes is what fits on chip of an A2 or A3.
    window, block = swa_indices.shape[1], 16
    sparse_attention_kernel[(tokens, heads // block)](
        q, kv_cache, swa_indices, swa_lens, attn_sink, attn_out, softmax_scale,
        HEADS=heads, WIDTH=head_dim, WINDOW=window, BH=block, BW=tile(window, 32),
    )  # fmt: skip
    launch_rotate_tail(attn_out, position_ids, rope_cos, rope_sin, inverse=True)


STAGE = Stage(
    name="sparse_attention_swa",
    specs=specs,
    golden=golden,
    launch=launch,
    # Probabilities rounded to bf16 under a tile's running maximum instead of the final one move a sum by up to 1/256
    # of its row's size; the output's own rounding is 1/128 of the value.
    compare={"attn_out": Close(rtol=1 / 128, atol=0.0, outside=0.005, row_rms=1 / 256, cap=4.0)},
    cases=decode_cases(seq=(1, 2)),
    family="swa",
)
