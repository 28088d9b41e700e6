"""The selection of the k best on the simulator, on counts and scores that break one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.devices.registry import open_device
from models.kernels.topk import launch_select


def selected(rows: list[torch.Tensor], *, k: int, candidates: int) -> list[list[int]]:
    """The indices of each row's best, ascending; what the launch must not read is NaN."""
    score = torch.full((len(rows), candidates), torch.nan)
    count = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    for number, row in enumerate(rows):
        score[number, : len(row)] = row
    index = torch.full((len(rows), k), 0x5A5A5A5A, dtype=torch.int32)
    with open_device("sim").active() as log:
        launch_select(score, count, index)
    assert log.violations == []
    for row, ids in zip(rows, index.tolist(), strict=True):
        assert ids[len(row) :] == [-1] * (k - len(row))
    return [sorted(ids[: len(row)]) for row, ids in zip(rows, index.tolist(), strict=True)]


def best(row: torch.Tensor, *, k: int) -> list[int]:
    """The true ones, of equal scores the lowest indices, ascending."""
    return sorted(sorted(range(len(row)), key=lambda j: -row[j].item())[:k])


def noise(*sizes: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in sizes]


def test_by_hand() -> None:
    """Two of the three equal scores fit, and the negative ones do not."""
    row = torch.tensor([-1.0, 0.25, 3.0, 0.25, -0.5, 2.0, 0.25, 1.0, -7.0])
    assert selected([row], k=5, candidates=32) == [[1, 2, 3, 5, 7]]


def test_counts_around_k() -> None:
    """Nothing, one, and one less than, as many as, one more than k; then all."""
    rows = noise(0, 1, 63, 64, 65, 96, 256)
    assert selected(rows, k=64, candidates=256) == [best(row, k=64) for row in rows]


@pytest.mark.parametrize("k", [1, 48, 512])
def test_other_k(k: int) -> None:
    rows = noise(k - 1, k, k + 1, 1024)
    assert selected(rows, k=k, candidates=1024) == [best(row, k=k) for row in rows]


def test_all_equal() -> None:
    """A relu gives 0 everywhere: any k will do, and the first are taken."""
    rows = [torch.zeros(size) for size in (63, 64, 65, 256)]
    assert selected(rows, k=64, candidates=256) == [list(range(min(len(row), 64))) for row in rows]


def test_scores_of_every_size_and_sign() -> None:
    """Denormals, both zeros, the largest floats and neighbours one bit apart."""
    tiny, one, large = 1e-45, math.nextafter(1.0, 2.0), 3.4028234663852886e38
    values = [
        0.0,
        -0.0,
        tiny,
        -tiny,
        2 * tiny,
        1.0,
        1.0 + 2**-23,
        one,
        -1.0,
        -1.0 - 2**-23,
        large,
        -large,
        1e-38,
        -1e-38,
    ]
    row = torch.tensor(values * 6, dtype=torch.float32)
    (ids,) = selected([row], k=64, candidates=96)
    assert len(set(ids)) == 64
    assert sorted(row[ids].tolist()) == sorted(row.tolist())[-64:]


def test_six_thousand_scores_inside_one_fp16_step() -> None:
    """1 + 2^-10 + (n - 3000) * 2^-23 for n below 6,000 in random order: all are 1 + 2^-10 in fp16."""
    order = torch.randperm(6000, generator=torch.Generator().manual_seed(0))
    row = 1 + 2**-10 + (order - 3000).float() * 2**-23
    assert set(row.half().tolist()) == {1 + 2**-10}
    assert len(set(row.tolist())) == 6000
    assert selected([row], k=512, candidates=6144) == [(order >= 6000 - 512).nonzero().flatten().tolist()]


def test_a_quarter_of_a_million_candidates() -> None:
    rows = noise(262_144, 262_143)
    rows[1][-1] = 100.0
    for row, ids in zip(rows, selected(rows, k=512, candidates=262_144), strict=True):
        assert ids == torch.topk(row, 512).indices.sort().values.tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(-3, 3), max_size=96), min_size=1, max_size=4),
    st.sampled_from([1.0, 1e-40, -0.3, 1e30]),
)
def test_ties_go_to_the_lowest_index(rows: list[list[int]], unit: float) -> None:
    # No -0.0: the key of a zero below is another one.
    scores = [torch.tensor(row, dtype=torch.float32) * unit + 0.0 for row in rows]
    assert selected(scores, k=16, candidates=96) == [best(row, k=16) for row in scores]
