"""The compressors' goldens against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from harness.stage import Precision
from models.deepseek_v4 import compressor_r4, compressor_r128, indexer_compressor
from models.deepseek_v4.compression_golden import pool

PRECISIONS: list[Precision] = ["exact", "device"]
both = pytest.mark.parametrize("precision", PRECISIONS)

PAGES = torch.tensor([[2, 0, 1]], dtype=torch.int32)
"""A ring of three pages."""


def lanes(tokens: int, *, skip: tuple[int, ...] = ()) -> torch.Tensor:
    """A state [3, 4, 4] after `tokens` tokens: token t has t in the front lane and 10t in the back one, scores of 0.
    Rows that were never written are NaN."""
    state = torch.full((3, 4, 4), torch.nan)
    for t in range(tokens):
        if t not in skip:
            state[PAGES[0, t // 4 % 3], t % 4] = torch.tensor([t, 10.0 * t, 0.0, 0.0])
    return state


@pytest.mark.parametrize(
    ("position", "entry"),
    [
        # (0 + 10 + 20 + 30) / 4: positions before 0 have no weight, whatever the ring holds there.
        (3, 15.0),
        # (0 + 1 + 2 + 3 + 40 + 50 + 60 + 70) / 8, then (4 + 5 + 6 + 7 + 80 + 90 + 100 + 110) / 8.
        (7, 28.25),
        (11, 50.25),
        # Round the ring: (8 + 9 + 10 + 11 + 120 + 130 + 140 + 150) / 8.
        (15, 72.25),
    ],
)
def test_a_group_is_the_front_of_the_one_before_and_its_own_back(position: int, entry: float) -> None:
    """G24."""
    state = lanes(position + 1)
    counts = torch.tensor([3], dtype=torch.int32)
    pooled = pool(state, PAGES, counts, torch.tensor([position]), ratio=4, head_dim=1)
    assert pooled.tolist() == [[entry]]


def test_a_row_on_no_page_has_no_weight() -> None:
    """Position 4 to 7 on page -1, though a page that any index might mean holds NaN."""
    table = torch.tensor([[2, -1, 1]], dtype=torch.int32)
    counts = torch.tensor([3], dtype=torch.int32)
    rows = [pool(lanes(12), table, counts, torch.tensor([p]), ratio=4, head_dim=1).item() for p in (7, 11)]
    assert rows == [1.5, 95.0]
    nowhere = torch.tensor([[-1, -1, -1]], dtype=torch.int32)
    assert pool(lanes(12), nowhere, counts, torch.tensor([7]), ratio=4, head_dim=1).item() == 0.0


def test_scores_weigh_lane_by_lane() -> None:
    """Two rows of weights 1 to 3 in lane 0, and 1 to 1 in lane 1, no overlap: (4 + 3 * 8) / 4 and (10 + 30) / 2."""
    state = torch.tensor([[[4.0, 10.0, 0.0, 5.0], [8.0, 30.0, math.log(3.0), 5.0]]])
    table, counts = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    pooled = pool(state, table, counts, torch.tensor([1]), ratio=2, head_dim=2)
    torch.testing.assert_close(pooled, torch.tensor([[7.0, 20.0]]))


def two_tokens(name: str, state: str, slots: str) -> dict[str, Any]:
    """Groups of two tokens without overlap; the second of positions 4 and 5 completes one. x = (t, 1), kv = (t, 2, 2,
    0), and the scores are 0 but for the bias, log 3 in the second place: pooled (4.75, 2, 2, 0)."""
    return {
        "x": torch.tensor([[4.0, 1.0], [5.0, 1.0]]).bfloat16(),
        f"{name}_wkv": torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 2.0], [0.0, 0.0]]).bfloat16(),
        f"{name}_wgate": torch.zeros(4, 2).bfloat16(),
        f"{name}_ape": torch.tensor([[0.0] * 4, [math.log(3.0)] * 4]),
        f"{name}_norm_w": torch.tensor([1.0, 2.0, 1.0, 1.0]).bfloat16(),
        "position_ids": torch.tensor([4, 5], dtype=torch.int32),
        f"{state}_slot_mapping": torch.tensor([2, 3]),
        f"{state}_block_table": torch.tensor([[0, 7, 1]], dtype=torch.int32),
        "block_counts": torch.full((1, 7), 3, dtype=torch.int32),
        slots: torch.tensor([-1, 1]),
        "rms_norm_eps": 0.0,
        state: torch.full((2, 2, 8), torch.nan),
        # A quarter turn at position 4, the group's first; position 5 has no such angle.
        "inv_freq": torch.tensor([math.pi / 8]),
        "rope_cos": torch.tensor([[1.0]] * 4 + [[0.0], [1.0]]).bfloat16(),
        "rope_sin": torch.tensor([[0.0]] * 4 + [[1.0], [0.0]]).bfloat16(),
    }


# (4.75, 2, 2, 0) has the root mean square sqrt((22.5625 + 4 + 4) / 4); the last pair then makes a quarter turn.
ROW = [4.75 / 2.7641, 2 * 2.0 / 2.7641, 0.0, 2.0 / 2.7641]


@both
def test_compressor_r128_from_the_tokens_to_the_row(precision: Precision) -> None:
    t = {**two_tokens("hca_cmp", "hca_state", "hca_cmp_slot_mapping"), "hca_cmp_kv": torch.zeros(2, 1, 4).bfloat16()}
    outputs = compressor_r128.golden(t, precision=precision)
    third = math.log(3.0)
    torch.testing.assert_close(
        outputs["hca_state"][1],
        torch.tensor([[4.0, 2.0, 2.0, 0.0] + [0.0] * 4, [5.0, 2.0, 2.0, 0.0] + [third] * 4]),
    )
    assert torch.isnan(outputs["hca_state"][0]).all()
    cache = outputs["hca_cmp_kv"].float()
    torch.testing.assert_close(cache[1, 0], torch.tensor(ROW), rtol=1 / 256, atol=1e-6)
    assert cache[0].tolist() == [[0.0] * 4]
    assert outputs["hca_cmp_kv"].dtype == (torch.float32 if precision == "exact" else torch.bfloat16)


@both
def test_compressor_r4_from_the_tokens_to_the_row(precision: Precision) -> None:
    """The same numbers as a back half; the front half of kv is (100, 100, 100, 100), which must not count in its own
    group, and positions 2 and 3, whose front halves would, are on page -1."""
    t = two_tokens("csa_cmp", "csa_state", "csa_cmp_slot_mapping")
    for name in ("wkv", "wgate"):
        front = torch.tensor([[0.0, 100.0]] * 4) * (name == "wkv")
        t[f"csa_cmp_{name}"] = torch.cat((front, t[f"csa_cmp_{name}"].float())).bfloat16()
    t["csa_cmp_ape"] = torch.cat((torch.zeros(2, 4), t["csa_cmp_ape"]), dim=1)
    t["csa_state"] = torch.full((2, 2, 16), torch.nan)
    t["csa_state_block_table"] = torch.tensor([[0, -1, 1]], dtype=torch.int32)
    t["csa_cmp_kv"] = torch.zeros(1, 2, 4).bfloat16()
    outputs = compressor_r4.golden(t, precision=precision)
    assert outputs["csa_state"][1, 0].tolist() == [100.0] * 4 + [4.0, 2.0, 2.0, 0.0] + [0.0] * 8
    torch.testing.assert_close(outputs["csa_cmp_kv"][0, 1].float(), torch.tensor(ROW), rtol=1 / 256, atol=1e-6)
    assert outputs["csa_cmp_kv"][0, 0].tolist() == [0.0] * 4


@both
def test_indexer_compressor_turns_and_quantises_the_row(precision: Precision) -> None:
    """(1.7185, 1.4471, 0, 0.7236) times Sylvester's matrix over 2: sums and differences of them all."""
    t = two_tokens("idx_cmp", "csa_inner_state", "csa_idx_slot_mapping")
    signs = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    t |= {
        "hadamard": (signs / 2).bfloat16(),
        "idx_kv": torch.full((1, 2, 4), -128, dtype=torch.int8),
        "idx_kv_scale": torch.full((1, 2, 1), torch.nan),
    }
    outputs = indexer_compressor.golden(t, precision=precision)
    key = (outputs["idx_kv"].float() * outputs["idx_kv_scale"])[0, 1]
    expected = torch.tensor([1.9446, -0.2261, 1.2210, 0.4975])
    torch.testing.assert_close(key, expected, rtol=0, atol=1e-4 if precision == "exact" else 1.9446 / 127)
    assert outputs["idx_kv_scale"][0, 1].item() == pytest.approx(1.9446 / 127, rel=1 / 256)
    assert outputs["idx_kv"][0, 1, 0].item() == pytest.approx(127, rel=1e-6)
    if precision == "device":
        # The row in bf16 is (1.71875, 1.4453125, 0, 0.72265625) and its product (1.9453125, -0.224609375, 1.21875,
        # 0.498046875) in bf16, whose last is 32.515 of 1.9453125 / 127; without the roundings it would be 32.49.
        assert outputs["idx_kv"].tolist() == [[[-128] * 4, [127, -15, 80, 33]]]
        assert outputs["idx_kv"].dtype == torch.int8
