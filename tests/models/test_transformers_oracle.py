"""The exact goldens are transformers' DeepSeek-V4, in fp32: the parts; `test_attention_oracle` has the blocks."""

from __future__ import annotations

import pytest
import torch
from transformers.models.deepseek_v4.modeling_deepseek_v4 import apply_rotary_pos_emb

from models.deepseek_v4 import attention_swa, hc_head, hc_pre, output_proj, rms_norm, swa_core
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
    module = reference.attention(t, TINY)
    attn_out = torch.randn(4, TINY.heads, TINY.head_dim, generator=torch.Generator().manual_seed(0))
    expected = module.o_b_proj(module.o_a_proj(attn_out.view(1, 4, TINY.o_groups, -1)).flatten(2))[0]
    actual = output_proj.golden({**t, "attn_out": attn_out}, precision="exact")["x_out"]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_hyper_connection() -> None:
    t = golden_inputs(attention_swa.STAGE, case_at(TINY, 5, 900, seq=2))
    post, comb, collapsed = reference.hyper_connection(t, TINY)(t["x_hc"][None])
    outputs = hc_pre.golden(t, precision="exact")
    torch.testing.assert_close(outputs["x"], collapsed[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs["hc_post"], post[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs["hc_comb"], comb[0].flatten(1), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_hyper_head() -> None:
    t = golden_inputs(hc_head.STAGE, case_at(TINY, 5, 900, seq=2))
    expected = reference.hyper_head(t, TINY)(t["x_hc"][None])[0]
    torch.testing.assert_close(hc_head.golden(t, precision="exact")["y"], expected, rtol=1e-5, atol=1e-5)
