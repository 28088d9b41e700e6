"""What the three sparse attention stages have in common: the window's arguments, the output, how it is judged."""

from __future__ import annotations

import torch
from torch import Tensor

from golden.comparators import Close
from golden.specs import Role, ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from models.deepseek_v4.caches import kv_pool, metadata_specs
from models.deepseek_v4.config import RopeProfile
from models.deepseek_v4.fixtures import activation, attention_sinks, config_of, rope_specs

# Probabilities rounded to bf16 under a tile's running maximum instead of the final one move a sum by up to 1/256
# of its row's size; the output's own rounding is 1/128 of the value. A sum that they move past a tie of its first
# rounding turns by a step of its own, 1/128 of up to 4 times the row's rms, and the rotation may bring it to a lane
# near 0: 8 times rms / 256. Such a lane is one in 10^6.
COMPARE = {"attn_out": Close(rtol=1 / 128, atol=0.0, outside=0.005, row_rms=1 / 256, cap=8.0)}


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stages' output; a composed stage takes it as scratch."""
    config = config_of(case)
    return (TensorSpec("attn_out", (case.tokens, config.heads, config.head_dim), torch.bfloat16, role=role),)


def window_specs(case: Case, rope: RopeProfile) -> tuple[Spec, ...]:
    """Queries, the sliding window's rows, the sinks and the rotation."""
    config = config_of(case)
    return (
        activation(case, "q", (config.heads, config.head_dim)),
        kv_pool(case, holds="step", role="in"),
        *metadata_specs(case, "swa_indices", "swa_lens"),
        attention_sinks(case),
        *rope_specs(case, rope),
        ScalarSpec("softmax_scale", config.softmax_scale, low=0.0),
    )


def check_window(
    *,
    q: Tensor,
    kv_cache: Tensor,
    swa_indices: Tensor,
    swa_lens: Tensor,
    attn_sink: Tensor,
    position_ids: Tensor,
    rope_cos: Tensor,
    rope_sin: Tensor,
    attn_out: Tensor,
) -> None:
    """Raise TypeError or ValueError naming the argument that does not fit the others."""
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


def check_compressed(kind: str, cache: Tensor, block_table: Tensor, visible: Tensor, *, q: Tensor) -> None:
    """Raise as `check_window` does for `<kind>_cmp_kv`, `<kind>_cmp_block_table` and `<kind>_visible`."""
    tokens, _, head_dim = q.shape
    name = f"{kind}_cmp_kv"
    check_tensor(name, cache, shape=(None, None, head_dim), dtype=torch.bfloat16, device=q.device)
    if not cache.shape[1] or cache.shape[1] & (cache.shape[1] - 1):
        raise ValueError(f"{name} must have a power of two of rows a page, got {cache.shape[1]}")
    name = f"{kind}_cmp_block_table"
    check_tensor(name, block_table, shape=(None, None), dtype=torch.int32, device=q.device)
    requests = len(block_table)
    if tokens and (not requests or tokens % requests):
        raise ValueError(f"{name} must have a row a request and equal tokens in each, got {requests} for {tokens}")
    check_tensor(f"{kind}_visible", visible, shape=(tokens,), dtype=torch.int32, device=q.device)
