"""The exact goldens are transformers' DeepSeek-V4, in fp32."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache
from transformers.models.deepseek_v4.modeling_deepseek_v4 import apply_rotary_pos_emb

import decode_metadata
from models.deepseek_v4 import output_proj, rms_norm, swa_core
from models.deepseek_v4.config import TINY
from models.deepseek_v4.golden_parts import rotate_tail, token_rotation
from tests.models import transformers_reference as reference
from tests.models.fixture import case_at, golden_inputs


def test_rms_norm() -> None:
    t = golden_inputs(rms_norm.STAGE, case_at(TINY, 5, 900, seq=2))
    expected = reference.rms_norm(t["norm_w"], eps=TINY.rms_norm_eps)(t["x"].float())
    torch.testing.assert_close(rms_norm.golden(t, precision="exact")["y"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
def test_rotation(inverse: bool) -> None:
    positions = torch.tensor([0, 1, 127, 8191, 65536, TINY.max_position - 1], dtype=torch.int32)
    x = torch.randn(len(positions), TINY.heads, TINY.head_dim, generator=torch.Generator().manual_seed(0))
    inv_freq = golden_inputs(swa_core.STAGE, case_at(TINY, 0))["inv_freq"]
    cos, sin = token_rotation({"position_ids": positions, "inv_freq": inv_freq}, precision="exact")
    wanted_cos, wanted_sin = reference.rotation(positions, TINY)
    expected = apply_rotary_pos_emb(x[None], wanted_cos, -wanted_sin if inverse else wanted_sin, unsqueeze_dim=2)[0]
    torch.testing.assert_close(rotate_tail(x, cos, sin, inverse=inverse), expected, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_output_projection() -> None:
    t = golden_inputs(swa_core.STAGE, case_at(TINY, 5, 900, seq=2))
    module = reference.sliding_attention(t, TINY)
    attn_out = torch.randn(4, TINY.heads, TINY.head_dim, generator=torch.Generator().manual_seed(0))
    expected = module.o_b_proj(module.o_a_proj(attn_out.view(1, 4, TINY.o_groups, -1)).flatten(2))[0]
    actual = output_proj.golden({**t, "attn_out": attn_out}, precision="exact")["x_out"]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


TOKENS = 280  # past the window of 128 and round a ring of two pages of 128
BATCH = 2


@pytest.fixture(scope="module")
def sequence() -> tuple[torch.Tensor, torch.Tensor]:
    """A sequence's hidden rows and what transformers' sliding layer, decoding one token at a time, makes of them."""
    t = golden_inputs(swa_core.STAGE, case_at(TINY, 0))
    x = torch.randn(BATCH, TOKENS, TINY.hidden, generator=torch.Generator().manual_seed(0))
    module = reference.sliding_attention(t, TINY)
    normed = reference.rms_norm(t["attn_norm_w"], eps=TINY.rms_norm_eps)(x)
    cos, sin = reference.rotation(torch.arange(TOKENS), TINY)
    cache = DynamicCache(config=module.config)
    outputs = []
    for p in range(TOKENS):
        rotation = {"main": (cos[:, p : p + 1], sin[:, p : p + 1])}
        outputs.append(module(normed[:, p : p + 1], rotation, torch.tensor([[p]]), None, cache=cache)[0])
    return x, torch.cat(outputs, 1).detach()


@pytest.mark.parametrize("seq", [1, 2, 4])
def test_a_sequence_decodes_as_in_transformers(sequence: tuple[torch.Tensor, torch.Tensor], seq: int) -> None:
    x, expected = sequence
    page = TINY.page_tokens
    t = golden_inputs(swa_core.STAGE, case_at(TINY, *[0] * BATCH, seq=seq))
    table, pages = decode_metadata.block_table(BATCH, columns=-(-TOKENS // page), pages_per_request=2, seed=1)
    pool = torch.full((pages, page, TINY.head_dim), torch.nan)
    actual = []
    for start in range(0, TOKENS, seq):
        positions = decode_metadata.position_ids(torch.full((BATCH,), start), seq=seq)
        rows, lens = decode_metadata.sliding_window(positions, table, window=TINY.window, page_rows=page)
        step = {
            "x": x[:, start : start + seq].flatten(0, 1),
            "position_ids": positions.flatten(),
            "ori_slot_mapping": decode_metadata.slot_mapping(positions, table, page_rows=page).flatten(),
            "swa_indices": rows.flatten(0, 1),
            "swa_lens": lens.flatten(),
            "kv_cache": pool,
        }
        outputs = swa_core.golden({**t, **step}, precision="exact")
        pool = outputs["kv_cache"]
        actual.append(outputs["x_out"].view(BATCH, seq, -1))
    torch.testing.assert_close(torch.cat(actual, 1), expected, rtol=1e-4, atol=1e-4)
