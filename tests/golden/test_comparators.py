from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.comparators import Close, Exact, MappedRows, QuantCodes
from golden.poison import poison_
from golden.verdict import Comparator, Verdict

BF16 = Close(rtol=1 / 128, atol=1e-4)
EVERY = [Exact(), BF16, QuantCodes()]


def judge(rule: Comparator, actual: torch.Tensor, expected: torch.Tensor) -> Verdict:
    return rule.compare("y", actual, expected, {})


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def codes(*shape: int) -> torch.Tensor:
    return (gaussian(*shape) * 34).round().clamp(-127, 127).to(torch.int8)


def reference(rule: Comparator, *shape: int) -> torch.Tensor:
    return codes(*shape) if isinstance(rule, QuantCodes) else gaussian(*shape)


@pytest.mark.parametrize("rule", EVERY, ids=str)
def test_the_reference_itself_passes_at_any_strides(rule: Comparator) -> None:
    expected = reference(rule, 3, 8)
    verdict = judge(rule, expected.clone(), expected)
    assert verdict.passed
    assert verdict.reason == ""
    assert verdict.rule == str(rule)
    assert judge(rule, expected[:, :5], expected[:, :5].contiguous()).passed
    assert judge(rule, expected.T.contiguous().T, expected).passed


@pytest.mark.parametrize("rule", EVERY, ids=str)
def test_a_strided_view_is_read_by_its_strides(rule: Comparator) -> None:
    base = torch.arange(24).view(3, 8)
    expected = base[:, :5].contiguous().to(torch.int8 if isinstance(rule, QuantCodes) else torch.float32)
    flat = base.reshape(-1)[:15].view(3, 5).to(expected.dtype)
    verdict = judge(rule, flat, expected)
    assert not verdict.passed
    assert verdict.first_bad == (1, 0)
    assert verdict.reason.startswith(f"y[1, 0] is {flat[1, 0].item()}, expected {expected[1, 0].item()}: ")


@pytest.mark.parametrize("rule", EVERY, ids=str)
def test_form_comes_first(rule: Comparator) -> None:
    expected = reference(rule, 4, 8)
    assert judge(rule, expected[:3], expected).reason == "y has shape (3, 8), expected (4, 8)"
    other = judge(rule, expected.to(torch.float64), expected)
    assert other.reason == f"y has dtype torch.float64, expected {expected.dtype}"
    assert judge(rule, expected.to("meta"), expected).reason == "y has device meta, expected cpu"
    empty = judge(rule, expected[:0], expected[:0])
    assert not empty.passed
    assert empty.reason == "y has shape (0, 8): an empty comparison proves nothing"


@pytest.mark.parametrize("rule", EVERY, ids=str)
def test_a_row_nobody_wrote_is_named(rule: Comparator) -> None:
    expected = reference(rule, 4, 8)
    actual = expected.clone()
    poison_(actual[2])
    verdict = judge(rule, actual, expected)
    assert verdict.first_bad == (2, 0)
    assert "never written" in verdict.reason
    assert "(and 7 more of 32)" in verdict.reason


def test_poison_of_wide_integers_is_named_unless_it_is_the_value() -> None:
    expected = torch.arange(6, dtype=torch.int32)
    actual = expected.clone()
    poison_(actual[4:])
    assert judge(Exact(), actual, expected).reason == (
        "y[4] is 1515870810, expected 4: never written, it holds the poison (and 1 more of 6)"
    )
    assert judge(Exact(), actual, actual.clone()).passed


@pytest.mark.parametrize("rule", [Exact(), BF16], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_fail_even_where_both_have_them(rule: Comparator, value: float) -> None:
    clean = gaussian(4, 8)
    bad = clean.clone()
    bad[1, 3] = value
    assert judge(rule, bad, clean).first_bad == (1, 3)
    assert judge(rule, bad, clean).reason.endswith("not finite")
    for actual in (clean, bad):
        verdict = judge(rule, actual, bad)
        assert not verdict.passed
        assert "the golden is not finite" in verdict.reason


def test_exact_tells_neighbours_apart_but_not_signs_of_zero() -> None:
    assert judge(Exact(), torch.tensor([0.0]), torch.tensor([-0.0])).passed
    verdict = judge(Exact(), torch.tensor([1.0, 1 + 2**-23]), torch.tensor([1.0, 1.0]))
    assert verdict.first_bad == (1,)
    assert verdict.figures["outside"] == 0.5
    assert not judge(Exact(), torch.tensor([9.18e-41], dtype=torch.bfloat16), torch.tensor([0.0]).bfloat16()).passed


# By hand, with rtol 1/128 and atol 0: 1 + 1/128 is inside, the next bf16 is not.
@pytest.mark.parametrize(("actual", "passes"), [(1.0078125, True), (1.015625, False), (0.9921875, True)])
def test_close_at_the_edge_of_its_tolerance(actual: float, passes: bool) -> None:
    rule = Close(rtol=1 / 128, atol=0.0)
    assert judge(rule, torch.tensor([actual]), torch.tensor([1.0])).passed is passes
    assert judge(rule, torch.tensor(actual), torch.tensor(1.0)).passed is passes


def test_close_adds_the_tolerances() -> None:
    expected = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    # rms of the rows: 3.5355 and 0.35355; tolerances of the first elements: 0.061 + 0.03536 and 0.0061 + 0.003536.
    rule = Close(rtol=0.02, atol=0.0001, row_rms=0.01)
    for row, tolerance in ((0, 0.0601 + 0.0353553), (1, 0.0061 + 0.00353553)):
        for factor, passes in ((0.99, True), (1.01, False)):
            actual = expected.clone()
            actual[row, 0] += factor * tolerance
            assert judge(rule, actual, expected).passed is passes, (row, factor)


def test_close_lets_a_share_miss_but_none_by_far() -> None:
    expected = torch.ones(10, 100)
    rule = Close(rtol=1e-2, atol=0.0, outside=0.005)
    actual = expected.clone()
    actual[0, :5] += 0.079
    verdict = judge(rule, actual, expected)
    assert verdict.passed
    assert verdict.figures["outside"] == 0.005
    actual[0, 5] += 0.011
    verdict = judge(rule, actual, expected)
    assert verdict.first_bad == (0, 0)
    assert "0.600% of the output beyond the tolerance, 0.500% may (and 5 more of 1000)" in verdict.reason
    actual = expected.clone()
    actual[3, 7] += 0.081
    assert "beyond 8 times the tolerance" in judge(rule, actual, expected).reason


def test_no_element_is_beyond_a_quarter_of_the_rms_however_wide_the_tolerance() -> None:
    expected = gaussian(64, 64) * 1e-5
    actual = expected.clone()
    actual[5, 5] += 9e-5
    assert "beyond a quarter of the output's rms" in judge(BF16, actual, expected).reason
    assert not judge(BF16, torch.zeros(64, 64), expected).passed


@pytest.mark.parametrize(("off", "passes"), [(0.24, True), (0.26, False)])
def test_the_quarter_by_hand(off: float, passes: bool) -> None:
    expected = torch.ones(1000)
    actual = expected.clone()
    actual[7] += off
    assert judge(Close(rtol=0.1, atol=0.0, outside=0.01), actual, expected).passed is passes


def test_a_golden_of_zeros_asks_for_zeros() -> None:
    zeros = torch.zeros(4, 4)
    assert judge(BF16, zeros.clone(), zeros).passed
    assert not judge(BF16, torch.full((4, 4), 1e-5), zeros).passed


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_scale_of_one_percent_fails_within_any_tolerance(factor: float) -> None:
    expected = gaussian(8, 512)
    rule = Close(rtol=0.05, atol=1e-3)
    verdict = judge(rule, expected * factor, expected)
    assert verdict.figures["outside"] == 0
    assert verdict.figures["scale"] == pytest.approx(factor, abs=1e-6)
    assert f"the output as a whole is {factor:.5f} times the expected" in verdict.reason
    assert verdict.first_bad == (0, 0)
    assert judge(rule, expected * 1.002, expected).passed


@settings(max_examples=50)
@given(st.integers(1, 300), st.integers(0, 2**31), st.floats(1e-6, 1e3))
def test_rounding_to_bf16_passes_however_few_or_small_the_elements(count: int, seed: int, size: float) -> None:
    expected = gaussian(count, seed=seed) * size
    actual = expected.bfloat16().float()
    assert judge(BF16, actual, expected).passed


@settings(max_examples=50)
@given(st.integers(1, 64), st.integers(0, 2**31), st.floats(0.02, 10.0), st.sampled_from([-1, 1]))
def test_an_element_wrong_by_more_than_the_tolerance_never_passes(count: int, seed: int, off: float, sign: int) -> None:
    expected = gaussian(count, seed=seed)
    at = seed % count
    actual = expected.clone()
    actual[at] += sign * off * (1 + abs(expected[at].item()))
    assert not judge(BF16, actual, expected).passed


def changed(expected: torch.Tensor, count: int, by: int) -> torch.Tensor:
    actual = expected.clone().view(-1)
    actual[:count] -= by * torch.where(actual[:count] < 0, -1, 1).to(torch.int8)
    return actual.view(expected.shape)


@pytest.mark.parametrize(
    ("size", "count", "by", "reason"),
    [
        (4096, 8, 1, None),
        (4096, 9, 1, "9 of 4096 codes differ, 8 may"),
        (4096, 1, 2, "more than 1 apart"),
        (64, 1, 1, None),
        (64, 2, 1, "2 of 64 codes differ, 1 may"),
    ],
)
def test_quant_codes(size: int, count: int, by: int, reason: str | None) -> None:
    expected = codes(size)
    verdict = judge(QuantCodes(), changed(expected, count, by), expected)
    assert verdict.passed is (reason is None)
    assert reason is None or reason in verdict.reason


def test_quant_codes_see_the_wrap_of_int8() -> None:
    verdict = judge(QuantCodes(), torch.tensor([-127], dtype=torch.int8), torch.tensor([127], dtype=torch.int8))
    assert verdict.figures["max_error"] == 254


def test_truncation_instead_of_rounding_fails() -> None:
    x = gaussian(4096) * 34
    verdict = judge(QuantCodes(), x.trunc().clamp(-127, 127).to(torch.int8), x.round().clamp(-127, 127).to(torch.int8))
    assert not verdict.passed
    assert verdict.figures["outside"] == pytest.approx(0.5, abs=0.05)


def test_small_codes_are_not_held_to_a_quarter_of_their_rms() -> None:
    expected = torch.zeros(1000, dtype=torch.int8)
    expected[::2] = 1
    actual = expected.clone()
    actual[1] = 1
    assert judge(QuantCodes(), actual, expected).passed
    assert judge(QuantCodes(), torch.zeros(1000, dtype=torch.int8), torch.zeros(1000, dtype=torch.int8)).passed


def test_many_codes_a_step_too_high_are_a_scale() -> None:
    expected = torch.full((10_000,), 10, dtype=torch.int8)
    actual = expected.clone()
    actual[:450] = 11
    verdict = judge(QuantCodes(share=0.05), actual, expected)
    assert "the output as a whole is 1.00450 times the expected" in verdict.reason


@pytest.mark.parametrize(
    ("rule", "expected", "reason"),
    [
        (QuantCodes(), torch.ones(3), "y has dtype torch.float32: QuantCodes judges int8"),
        (BF16, torch.ones(3, dtype=torch.int8), "y has dtype torch.int8: Close judges floats"),
    ],
    ids=["codes", "close"],
)
def test_a_comparator_refuses_what_it_does_not_judge(rule: Comparator, expected: torch.Tensor, reason: str) -> None:
    assert judge(rule, expected.clone(), expected).reason == reason


def test_comparators_print_their_thresholds() -> None:
    assert str(Exact()) == "Exact()"
    assert str(Close(rtol=0.5, atol=0.0, outside=0.25)) == "Close(rtol=0.5, atol=0.0, outside=0.25)"
    assert str(QuantCodes()) == "QuantCodes()"
    assert str(QuantCodes(step=2)) == "QuantCodes(step=2)"
    assert str(MappedRows("slots", Exact())) == "MappedRows(slots, Exact())"


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "rtol": (lambda: Close(rtol=-1.0, atol=0.0), "rtol must be 0.0 to inf, got -1.0"),
    "atol": (lambda: Close(rtol=0.0, atol=math.nan), "atol must be a finite number, got nan"),
    "row_rms": (lambda: Close(rtol=0.0, atol=0.0, row_rms=math.inf), "row_rms must be a finite number, got inf"),
    "outside": (lambda: Close(rtol=0.0, atol=0.0, outside=0.6), "outside must be 0.0 to 0.5, got 0.6"),
    "cap": (lambda: Close(rtol=0.0, atol=0.0, cap=0.5), "cap must be 1.0 to 8.0, got 0.5"),
    "high cap": (lambda: Close(rtol=0.0, atol=0.0, cap=9), "cap must be 1.0 to 8.0, got 9"),
    "step": (lambda: QuantCodes(step=0), "step must be 1 to 126, got 0"),
    "half step": (lambda: QuantCodes(step=0.5), "step must be an integer, got 0.5"),  # type: ignore[arg-type]
    "share": (lambda: QuantCodes(share=1.0), "share must be 0.0 to 0.5, got 1.0"),
}


@pytest.mark.parametrize("name", BAD)
def test_thresholds_are_checked_when_made(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make()
    assert message in str(error.value)


def test_how_much_of_a_limit_is_used() -> None:
    expected = torch.full((100,), 8.0)
    # An error of 0.5, where 8 * 0.125 may be.
    verdict = Close(rtol=0.125, atol=0.0).compare("y", expected + torch.tensor([0.5] + [0.0] * 99), expected, {})
    assert verdict.figures["limit_used"] == 0.5
    assert Exact().compare("y", expected, expected, {}).figures.get("limit_used") is None
