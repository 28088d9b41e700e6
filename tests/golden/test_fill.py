from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import fill
from golden.specs import Fill

FLOATS: dict[str, Fill] = {
    "normal": fill.normal(0, "flash", "w"),
    "uniform": fill.uniform(0, "flash", "w", low=2.0, high=6.0),
    "rows": fill.rows(0, "kv", requests=torch.zeros(512, dtype=torch.int64), positions=torch.arange(512)),
}
SHAPE = (512, 256)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fill_gives_shape_dtype_and_the_same_numbers_again(name: str, dtype: torch.dtype) -> None:
    got = FLOATS[name](SHAPE, dtype)
    assert tuple(got.shape) == SHAPE
    assert got.dtype == dtype
    assert torch.equal(got, FLOATS[name](SHAPE, dtype))
    assert torch.isfinite(got).all()


@pytest.mark.parametrize(
    ("made", "mean", "std"),
    [
        (fill.normal(1, "w"), 0.0, 1.0),
        (fill.normal(1, "w", std=0.02, mean=3.0), 3.0, 0.02),
        (fill.uniform(1, "w", low=2.0, high=6.0), 4.0, 4 / math.sqrt(12)),
        (
            fill.rows(1, "w", requests=torch.zeros(512, dtype=torch.int32), positions=torch.arange(512), std=0.5),
            0.0,
            0.5,
        ),
    ],
)
def test_moments(made: Fill, mean: float, std: float) -> None:
    got = made(SHAPE, torch.float32).double()
    assert got.mean().item() == pytest.approx(mean, abs=5 * std / math.sqrt(got.numel()))
    assert got.std().item() == pytest.approx(std, rel=0.01)


def test_uniform_and_integers_stay_in_range_and_reach_its_ends() -> None:
    got = fill.uniform(0, "sink", low=2.0, high=6.0)((100_000,), torch.bfloat16)
    assert (got.min().item(), got.max().item()) == (2.0, 6.0)
    ids = fill.integers(0, "ids", low=-1, high=2)((1000,), torch.int32)
    assert ids.dtype == torch.int32
    assert ids.unique().tolist() == [-1, 0, 1, 2]


def test_int8_codes_are_a_bell_that_reaches_127_and_never_128() -> None:
    got = fill.int8_codes(0, "w")((512, 4096), torch.int8)
    assert got.dtype == torch.int8
    assert (int(got.min()), int(got.max())) == (-127, 127)
    within_one_std = (got.abs() <= 34).double().mean().item()
    assert within_one_std == pytest.approx(0.69, abs=0.01)


KEYS = [(0, "a", "b"), (1, "a", "b"), (0, "ab"), (0, "a", "b", 0), ("0", "a", "b"), (0, "b", "a")]


def test_every_part_of_a_key_counts() -> None:
    drawn = [fill.normal(*key)((64,), torch.float32) for key in KEYS]
    for i, one in enumerate(drawn):
        assert not any(torch.equal(one, other) for other in drawn[:i])


def test_a_key_means_the_same_in_another_process() -> None:
    program = "from golden.fill import int8_codes; import torch; print(int8_codes(7, 'w')((5,), torch.int8).tolist())"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert other.strip() == str(fill.int8_codes(7, "w")((5,), torch.int8).tolist())


def filled_rows(
    requests: list[int], positions: list[int], width: int, *, seed: int = 0, name: str = "kv"
) -> torch.Tensor:
    made = fill.rows(seed, name, requests=torch.tensor(requests), positions=torch.tensor(positions))
    return made((len(requests), width), torch.float32)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(-1, 63), st.integers(0, 2**20)), min_size=2, max_size=8, unique=True), st.randoms()
)
def test_a_row_depends_on_its_request_and_position_alone(tokens: list[tuple[int, int]], random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(tokens)))
    random.shuffle(order)
    shuffled = [tokens[i] for i in order]
    straight = filled_rows(*map(list, zip(*tokens, strict=True)), 10)
    mixed = filled_rows(*map(list, zip(*shuffled, strict=True)), 10)
    assert torch.equal(straight[order], mixed)
    assert len(straight.unique(dim=0)) == len(tokens)


def test_rows_do_not_depend_on_width_blocks_or_pages() -> None:
    long = fill.rows(0, "kv", requests=torch.zeros(1000, dtype=torch.int64), positions=torch.arange(1000))
    wide = long((1000, 512), torch.float32)
    assert torch.equal(wide[:, :7], long((1000, 7), torch.float32))
    assert torch.equal(wide[997], filled_rows([0], [997], 512)[0])
    pages = fill.rows(
        0, "kv", requests=torch.zeros(4, 250, dtype=torch.int64), positions=torch.arange(1000).view(4, 250)
    )
    assert torch.equal(wide.view(4, 250, 512), pages((4, 250, 512), torch.float32))
    assert torch.equal(wide.view(1000, 8, 64), long((1000, 8, 64), torch.float32))


def test_rows_differ_by_seed_and_name_and_are_not_correlated() -> None:
    base = filled_rows([0, 0, 1], [5, 6, 5], 4096)
    both = torch.cat((base, filled_rows([0], [5], 4096, seed=1), filled_rows([0], [5], 4096, name="x")))
    off_diagonal = torch.corrcoef(both) - torch.eye(5)
    assert off_diagonal.abs().max().item() < 5 / math.sqrt(4096)


BAD = {
    "std": (lambda: fill.normal(0, std=-1.0), ValueError, "std must be finite and at least 0, got -1.0"),
    "range": (lambda: fill.uniform(0, low=1.0, high=0.0), ValueError, "in order, got 1.0 and 0.0"),
    "order": (lambda: fill.integers(0, low=1, high=0), ValueError, "low must not be above high, got 1 and 0"),
    "no key": (lambda: fill.normal(), ValueError, "key must have at least one part"),
    "key": (lambda: fill.normal(0, 1.5), TypeError, "key must hold integers and strings, got 1.5"),
    "float dtype": (
        lambda: fill.normal(0)((2,), torch.int8),
        ValueError,
        "normal fills floating tensors, got dtype torch.int8",
    ),
    "int dtype": (
        lambda: fill.integers(0, low=0, high=1)((2,), torch.float32),
        ValueError,
        "integers fills integer tensors, got dtype torch.float32",
    ),
    "too wide": (
        lambda: fill.integers(0, low=0, high=300)((2,), torch.int8),
        ValueError,
        "must be values of torch.int8",
    ),
    "codes": (lambda: fill.int8_codes(0)((2,), torch.int32), ValueError, "int8_codes fills int8 tensors"),
    "shapes": (
        lambda: fill.rows(0, "x", requests=torch.zeros(2, dtype=torch.int32), positions=torch.arange(3)),
        ValueError,
        "positions must have the shape of requests, (2,), got (3,)",
    ),
    "requests": (
        lambda: fill.rows(0, "x", requests=torch.zeros(2), positions=torch.arange(2)),
        ValueError,
        "requests must be an integer tensor, got torch.float32",
    ),
    "leading": (
        lambda: fill.rows(0, "x", requests=torch.arange(2), positions=torch.arange(2))((3, 4), torch.float32),
        ValueError,
        "rows fills shapes that start with (2,) and go on, got (3, 4)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name: str) -> None:
    call, kind, message = BAD[name]
    with pytest.raises(kind) as error:
        call()
    assert message in str(error.value)


def test_an_expert_s_row_is_its_own_whatever_the_layout() -> None:
    shape, dtype = (4, 3, 5), torch.int8
    whole = fill.per_expert(fill.int8_codes, 7, "w1", experts=range(4))(shape, dtype)
    halves = [fill.per_expert(fill.int8_codes, 7, "w1", experts=range(first, first + 2)) for first in (0, 2)]
    assert torch.equal(torch.cat([half((2, 3, 5), dtype) for half in halves]), whole)
    assert torch.equal(halves[1].one(1)((3, 5), dtype), whole[3])
    # The key of an expert alone makes the same numbers; no two experts have the same.
    assert torch.equal(fill.int8_codes(7, "w1", 3)((3, 5), dtype), whole[3])
    assert len({tuple(row.flatten().tolist()) for row in whole}) == 4
    scale = fill.per_expert(fill.uniform, 7, "w1_scale", experts=range(4), low=0.5, high=1.0)((4, 8), torch.float32)
    assert 0.5 <= float(scale.min()) < float(scale.max()) <= 1.0
    with pytest.raises(ValueError, match=r"start with 2 experts, got \(4, 3, 5\)"):
        halves[0](shape, dtype)
