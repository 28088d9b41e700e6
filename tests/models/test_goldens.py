"""Each golden against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from harness.stage import Precision
from models.deepseek_v4 import embed, kv_write, output_proj, qkv_proj_rope, rms_norm, sparse_attention_swa

QUARTER_TURN = {
    "position_ids": torch.tensor([1], dtype=torch.int32),
    "inv_freq": torch.tensor([math.pi / 2]),
    "rope_cos": torch.tensor([[1.0], [0.0]]).bfloat16(),
    "rope_sin": torch.tensor([[0.0], [1.0]]).bfloat16(),
}
PRECISIONS: list[Precision] = ["exact", "device"]

both = pytest.mark.parametrize("precision", PRECISIONS)


def bf16(*values: float) -> torch.Tensor:
    return torch.tensor(values).bfloat16()


@both
def test_rms_norm(precision: Precision) -> None:
    t = {"x": bf16(3, 4, 0, 0, 0, 0, 0, 0).view(2, 4), "norm_w": bf16(1, 2, 1, 1), "rms_norm_eps": 1e-6}
    y = rms_norm.golden(t, precision=precision)["y"]
    assert y.dtype == (torch.float32 if precision == "exact" else torch.bfloat16)
    expected = torch.tensor([[1.2, 3.2, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(y.float(), expected, rtol=1 / 256, atol=0)


@both
def test_embed_clamps_ids_and_fills_every_lane(precision: Precision) -> None:
    t = {"input_ids": torch.tensor([-1, 0, 2, 3, 1]), "embed_w": bf16(1, 2, 3, 4, 5, 6).view(3, 2), "hc_lanes": 2}
    outputs = embed.golden(t, precision=precision)
    rows = [[1, 2], [1, 2], [5, 6], [5, 6], [3, 4]]
    assert outputs["hidden"].tolist() == rows
    assert outputs["x_hc"].tolist() == [[row, row] for row in rows]
    assert outputs["x_hc"].dtype == torch.float32


@both
def test_kv_write_skips_minus_one(precision: Precision) -> None:
    t = {
        "kv": bf16(1, 2, 3).view(3, 1),
        "ori_slot_mapping": torch.tensor([3, -1, 0]),
        "kv_cache": bf16(10, 11, 12, 13).view(2, 2, 1),
    }
    assert kv_write.golden(t, precision=precision)["kv_cache"].flatten().tolist() == [3, 11, 12, 1]
    assert t["kv_cache"].flatten().tolist() == [10, 11, 12, 13]


def one_head(indices: list[int], length: int) -> dict[str, object]:
    """A query of zeros, so that every score is 0; rows (4, 0, 4, 0) and (0, 8, 0, 4) in a pool of three; sink log 2."""
    return {
        "q": torch.zeros(1, 1, 4).bfloat16(),
        "kv_cache": bf16(math.nan, 0, 0, 0, 4, 0, 4, 0, 0, 8, 0, 4).view(1, 3, 4),
        "swa_indices": torch.tensor([indices], dtype=torch.int32),
        "swa_lens": torch.tensor([length], dtype=torch.int32),
        "attn_sink": torch.tensor([math.log(2.0)]),
        "softmax_scale": 0.5,
        **QUARTER_TURN,
    }


@both
@pytest.mark.parametrize(
    ("indices", "length", "expected"),
    [
        # (row 1 + row 2) / (2 + 1 + 1) = (1, 2, 1, 1), then a quarter turn back of the last pair.
        ([1, 2, -1], 2, [1.0, 2.0, 1.0, -1.0]),
        # An unmapped row within the length is not seen: row 1 / (2 + 1).
        ([-1, 1, -1], 2, [4 / 3, 0.0, 0.0, -4 / 3]),
        # Nor is one past it.
        ([1, 2, 0], 1, [4 / 3, 0.0, 0.0, -4 / 3]),
        ([-1, -1, -1], 0, [0.0, 0.0, 0.0, 0.0]),
    ],
    ids=["two-rows", "hole", "past-the-length", "no-row"],
)
def test_sparse_attention(precision: Precision, indices: list[int], length: int, expected: list[float]) -> None:
    o = sparse_attention_swa.golden(one_head(indices, length), precision=precision)["attn_out"]
    torch.testing.assert_close(o.float().flatten(), torch.tensor(expected), rtol=1 / 256, atol=1e-6)


@both
def test_qkv_proj_rope(precision: Precision) -> None:
    """a = (3, 4) / sqrt(12.5); its codes are (95, 127). The query head (1 0, 0 1, 1 1, 0 0) makes (95, 127, 222, 0) of
    them, whose root mean square is 136.416, and the last pair makes a quarter turn."""
    t = {
        "x": bf16(3, 4).view(1, 2),
        "wq_a": bf16(1, 0, 0, 1).view(2, 2),
        "q_norm_w": bf16(1, 1),
        "wq_b": torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=torch.int8),
        "wq_b_scale": torch.full((4,), 1000.0),
        "wkv": bf16(1, 0, 0, 1, 1, 0, 0, 1).view(4, 2),
        "kv_norm_w": bf16(1, 1, 1, 2),
        "rms_norm_eps": 0.0,
        **QUARTER_TURN,
    }
    outputs = qkv_proj_rope.golden(t, precision=precision)
    q = [0.6964, 0.9310, 0.0, 1.6274] if precision == "device" else [0.6975, 0.9299, 0.0, 1.6274]
    torch.testing.assert_close(outputs["q"].float().flatten(), torch.tensor(q), rtol=1 / 256, atol=1e-6)
    kv = torch.tensor([0.8485, 1.1314, -2 * 1.1314, 0.8485])
    torch.testing.assert_close(outputs["kv"].float().flatten(), kv, rtol=1 / 256, atol=1e-6)
    if precision == "device":
        assert outputs["qr"].tolist() == [[95, 127]]
        assert outputs["qr_scale"].item() == pytest.approx(4 / math.sqrt(12.5) / 127)


def test_output_proj_has_one_scale_a_group() -> None:
    """Group 1 is 64 times smaller than group 0: its second lane is code 1 on its own scale, and 0 on group 0's."""
    t = {
        "attn_out": bf16(127 / 16, 1 / 16, 127 / 1024, 1 / 1024).view(1, 2, 2),
        "wo_a": bf16(1, 0, 0, 1).view(1, 2, 2).repeat(2, 1, 1),
        "wo_b": torch.tensor([[0, 0, 0, 127], [1, 1, 0, 0]], dtype=torch.int8),
        "wo_b_scale": torch.tensor([1.0, 0.5]),
    }
    for precision in PRECISIONS:
        x_out = output_proj.golden(t, precision=precision)["x_out"]
        torch.testing.assert_close(x_out.float(), torch.tensor([[127 / 1024, 4.0]]), rtol=1e-6, atol=0)
