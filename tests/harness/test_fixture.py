"""A fixture's tensors lie where production's would, start poisoned, and tell what a launch did to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.poison import is_poisoned
from golden.specs import TensorSpec
from harness.fixture import ALIGNMENT_BYTES, Fixture, Guarded, same_bits
from tests.harness.fakes import WIDTH, case, specs

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int32, torch.int64, torch.bool)


def toy() -> Fixture:
    return Fixture(specs(case()), device=CPU)


@settings(deadline=None, max_examples=50)
@given(shape=st.lists(st.integers(0, 5), max_size=3), dtype=st.sampled_from(DTYPES), distance=st.integers(0, 300))
def test_a_byte_beside_a_tensor_is_found_where_it_is(shape: list[int], dtype: torch.dtype, distance: int) -> None:
    guarded = Guarded.allocate(TensorSpec("x", tuple(shape), dtype, 0), device=CPU)
    guarded.tensor.zero_()
    assert guarded.tensor.data_ptr() % ALIGNMENT_BYTES == 0 or not guarded.tensor.numel()
    assert guarded.tensor.is_contiguous()
    assert guarded.damage() is None
    end = guarded.lead_bytes + guarded.tensor.numel() * guarded.tensor.element_size()
    for index, found in (
        (end + distance, ("after", distance)),
        (guarded.lead_bytes - 1 - distance, ("before", distance + 1)),
    ):
        kept = guarded.buffer[index].item()
        guarded.buffer[index] = 1
        assert guarded.damage() == found
        guarded.buffer[index] = kept


def test_a_guard_reads_as_nan() -> None:
    guarded = Guarded.allocate(TensorSpec("x", (4,), torch.bfloat16, 0.0), device=CPU)
    assert guarded.buffer[: guarded.lead_bytes].view(torch.bfloat16).isnan().all()


def test_arguments_are_what_a_launch_gets() -> None:
    fixture = toy()
    assert list(fixture.arguments) == ["x", "slots", "pool", "y", "staging", "gain"]
    assert fixture.arguments["gain"] == 2.0
    assert list(fixture.originals.values) == ["x", "slots", "pool", "offset", "gain"]


def test_outputs_scratch_and_mapped_rows_are_poisoned_and_the_rest_is_not() -> None:
    fixture = toy()
    arguments: dict[str, Any] = dict(fixture.arguments)
    assert is_poisoned(arguments["y"]).all()
    assert is_poisoned(arguments["staging"]).all()
    poisoned = is_poisoned(arguments["pool"]).view(-1, WIDTH).all(dim=1).nonzero().flatten()
    assert poisoned.tolist() == [1, 3, 5]
    original: Any = fixture.originals.values["pool"]
    assert not is_poisoned(original).any()
    untouched = [0, 2, 4, 6, 7, 8, 9, 10, 11]
    assert same_bits(arguments["pool"].view(-1, WIDTH)[untouched], original.view(-1, WIDTH)[untouched])


def test_reset_undoes_a_launch() -> None:
    fixture = toy()
    arguments: dict[str, Any] = dict(fixture.arguments)
    before = {name: arguments[name].clone() for name in ("pool", "y", "staging")}
    for name in before:
        arguments[name].zero_()
    fixture.reset()
    assert all(same_bits(arguments[name], before[name]) for name in before)


def past_end(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + tensor.numel())


def before_start(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((1,), (1,), tensor.storage_offset() - 1)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda t: past_end(t["y"]).fill_(7.0), "guard y: written outside the argument, 0 bytes past its end"),
        (lambda t: before_start(t["x"]).fill_(7.0), "guard x: written outside the argument, 1 bytes before its start"),
        (lambda t: t["slots"][1:2].fill_(9), "input slots: input overwritten, first at [1]: was 3, is 9"),
        (
            lambda t: past_end(t["staging"]).fill_(7),
            "guard staging: written outside the argument, 0 bytes past its end",
        ),
    ],
    ids=["after output", "before input", "input", "after scratch"],
)
def test_harm_is_named(harm: Callable[[dict[str, Any]], object], message: str) -> None:
    fixture = toy()
    assert fixture.check() == []
    harm(dict(fixture.arguments))
    assert [str(failure) for failure in fixture.check()] == [message]


def test_nan_and_the_sign_of_zero_are_bits_too() -> None:
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


@settings(deadline=None)
@given(
    values=st.lists(st.integers(-128, 127), max_size=40),
    offset=st.integers(0, 9),
    flip=st.integers(0, 39),
)
def test_any_byte_that_differs_is_seen_at_any_offset(values: list[int], offset: int, flip: int) -> None:
    left = torch.tensor(values, dtype=torch.int8)
    right = torch.tensor([0] * offset + values, dtype=torch.int8)[offset:]
    assert same_bits(left, right)
    if flip < len(values):
        right[flip] ^= 1
        assert not same_bits(left, right)
    assert not same_bits(left, torch.tensor([*values, 0], dtype=torch.int8))


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([1, 1, -1, -1], r"slots must not hold a row twice, got 1 at \[0\] and \[1\]"),
        ([1, 12, 3, -1], r"slots\[1\] must be -1 or a row of the pool's 12, got 12"),
        ([1, 2, 3, -2], r"slots\[3\] must be -1 or a row of the pool's 12, got -2"),
    ],
    ids=["duplicate", "past the pool", "below -1"],
)
def test_a_wrong_slot_mapping_is_refused(slots: list[int], message: str) -> None:
    wrong = [
        TensorSpec("slots", (4,), torch.int64, torch.tensor(slots)) if spec.name == "slots" else spec
        for spec in specs(case())
    ]
    with pytest.raises(ValueError, match=message):
        Fixture(wrong, device=CPU)
