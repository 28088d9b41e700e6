from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golden.comparators import Close, Exact, MappedRows
from golden.poison import poison_

RULE = MappedRows("ori_slot_mapping", Close(rtol=1 / 128, atol=1e-4))
PAGES, PAGE_ROWS, WIDTH = 3, 4, 8


def fixture(slots: list[list[int]], *, seed: int = 0) -> tuple[torch.Tensor, dict[str, object]]:
    """The golden's pool and the inputs: the pool before, poisoned where it must be written, and the mapping."""
    before = torch.randn(PAGES, PAGE_ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))
    expected = before.clone()
    mapping = torch.tensor(slots, dtype=torch.int64)
    rows = mapping[mapping >= 0]
    expected.view(-1, WIDTH)[rows] = torch.randn(len(rows), WIDTH, generator=torch.Generator().manual_seed(seed + 1))
    flat = before.view(-1, WIDTH)
    written = flat[rows]
    flat[rows] = poison_(written)
    return expected, {"kv_cache": before, "ori_slot_mapping": mapping}


def test_written_rows_within_the_rule_and_the_rest_as_it_was() -> None:
    expected, inputs = fixture([[5, 11], [-1, 0]])
    actual = expected.clone()
    actual[1, 1] *= 1.001
    verdict = RULE.compare("kv_cache", actual, expected, inputs)
    assert verdict.passed
    assert verdict.rule == "MappedRows(ori_slot_mapping, Close(rtol=0.0078125, atol=0.0001))"
    assert verdict.figures["mapped_rows"] == 3
    assert verdict.figures["max_error"] > 0


def test_a_mapped_row_nobody_wrote() -> None:
    expected, inputs = fixture([[5, 11], [-1, 0]])
    actual = expected.clone()
    poison_(actual[2, 3])
    verdict = RULE.compare("kv_cache", actual, expected, inputs)
    assert verdict.first_bad == (2, 3, 0)
    assert verdict.reason == (
        f"kv_cache[2, 3, 0] is nan, expected {expected[2, 3, 0].item()}: "
        "never written, it holds the poison (and 7 more of 24)"
    )


def test_a_wrong_mapped_element_is_named_by_its_place_in_the_pool() -> None:
    expected, inputs = fixture([[5, 11], [-1, 0]])
    actual = expected.clone()
    actual[2, 3, 6] += 0.01
    verdict = RULE.compare("kv_cache", actual, expected, inputs)
    assert verdict.first_bad == (2, 3, 6)
    assert verdict.reason.startswith("kv_cache[2, 3, 6] is ")


def test_one_bit_outside_the_mapping_fails() -> None:
    expected, inputs = fixture([[5, 11], [-1, 0]])
    actual = expected.clone()
    actual.view(torch.int32)[0, 1, 7] ^= 1
    verdict = RULE.compare("kv_cache", actual, expected, inputs)
    assert verdict.first_bad == (0, 1, 7)
    assert "before the launch: ori_slot_mapping maps no such row (1 rows changed outside the mapping)" in verdict.reason


def test_nan_outside_the_mapping_may_stay_but_not_appear() -> None:
    expected, inputs = fixture([[5]])
    before = inputs["kv_cache"]
    assert isinstance(before, torch.Tensor)
    before[0, 0, 0] = expected[0, 0, 0] = float("nan")
    assert RULE.compare("kv_cache", expected.clone(), expected, inputs).passed
    actual = expected.clone()
    actual[0, 0, 1] = float("nan")
    assert RULE.compare("kv_cache", actual, expected, inputs).first_bad == (0, 0, 1)


def test_a_golden_that_writes_outside_does_not_excuse_the_kernel() -> None:
    expected, inputs = fixture([[5]])
    expected[2, 2] = 1.0
    assert RULE.compare("kv_cache", expected.clone(), expected, inputs).first_bad == (2, 2, 0)


def test_with_nothing_mapped_the_pool_must_be_unchanged() -> None:
    expected, inputs = fixture([[-1], [-1]])
    verdict = RULE.compare("kv_cache", expected.clone(), expected, inputs)
    assert verdict.passed
    assert verdict.figures["mapped_rows"] == 0
    assert not RULE.compare("kv_cache", expected + 1, expected, inputs).passed
    none = torch.empty(0, 4, 8)
    verdict = RULE.compare("kv_cache", none, none, {"kv_cache": none, "ori_slot_mapping": torch.tensor([[-1]])})
    assert "proves nothing" in verdict.reason


def test_int8_pools_and_strided_views() -> None:
    base = torch.arange(96, dtype=torch.int8).view(3, 4, 8)
    before, expected = base[..., :5], base.clone()[..., :5]
    expected[1, 1] = 7
    rule = MappedRows("slots", Exact())
    inputs: dict[str, object] = {"codes": before, "slots": torch.tensor([5], dtype=torch.int32)}
    assert rule.compare("codes", expected, expected.contiguous(), inputs).passed
    assert rule.compare("codes", before, expected.contiguous(), inputs).first_bad == (1, 1, 0)


@given(
    st.lists(st.integers(-1, 11), max_size=6).filter(lambda s: len({x for x in s if x >= 0}) == sum(x >= 0 for x in s))
)
def test_any_row_changed_outside_the_mapping_is_seen(slots: list[int]) -> None:
    expected, inputs = fixture([slots])
    assert RULE.compare("kv_cache", expected.clone(), expected, inputs).passed
    for row in range(PAGES * PAGE_ROWS):
        actual = expected.clone()
        actual.view(-1, WIDTH)[row, 3] += 3.0
        verdict = RULE.compare("kv_cache", actual, expected, inputs)
        assert verdict.first_bad == (row // PAGE_ROWS, row % PAGE_ROWS, 3)


BAD: dict[str, tuple[object, str]] = {
    "below -1": (torch.tensor([[0, -2]]), "ori_slot_mapping[0, 1] must be -1 or a row of the pool's 12, got -2"),
    "past the pool": (torch.tensor([[0], [12]]), "ori_slot_mapping[1, 0] must be -1 or a row of the pool's 12, got 12"),
    "twice": (torch.tensor([[5], [5]]), "ori_slot_mapping must not hold a row twice, got [5]"),
    "dtype": (torch.tensor([[5.0]]), "ori_slot_mapping must be int32 or int64, got torch.float32"),
    "int16": (torch.tensor([[5]], dtype=torch.int16), "ori_slot_mapping must be int32 or int64, got torch.int16"),
    "missing": (None, "inputs must hold the tensor 'ori_slot_mapping', got NoneType"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_mapping_is_the_cases_fault(name: str) -> None:
    mapping, message = BAD[name]
    expected, inputs = fixture([[5]])
    inputs["ori_slot_mapping"] = mapping
    with pytest.raises(ValueError) as error:  # noqa: PT011
        RULE.compare("kv_cache", expected.clone(), expected, inputs)
    assert str(error.value) == message


def test_the_pool_before_must_be_the_pools_like() -> None:
    expected, inputs = fixture([[5]])
    inputs["kv_cache"] = expected[:2]
    with pytest.raises(ValueError, match=r"inputs\['kv_cache'\] must be \(3, 4, 8\) torch\.float32, got \(2, 4, 8\)"):
        RULE.compare("kv_cache", expected.clone(), expected, inputs)
    with pytest.raises(ValueError, match=r"kv_cache must have rows, got shape \(8,\)"):
        RULE.compare("kv_cache", expected[0, 0], expected[0, 0], inputs)
