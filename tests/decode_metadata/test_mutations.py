"""One fault at a time in the builders' source: each must make some step differ from the oracle."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest
from hypothesis import given, settings

from decode_metadata import StepInputs, step
from decode_metadata.strategies import steps
from tests.decode_metadata.oracle import expected_step

# fault: (module, what it says, what it would say)
MUTATIONS = {
    "window starts one early": ("lowering", "oldest = end - lens", "oldest = position - lens"),
    "window one short": ("lowering", "end.clamp(max=window)", "end.clamp(max=window - 1)"),
    "window's tail not masked": ("lowering", "rows.masked_fill(k >= lens[..., None], -1)", "rows"),
    "window past the table": ("lowering", "(column > last_column) | ", ""),
    "window row wraps": ("lowering", " | (pages > last_page)", ""),
    "another group's count": ("lowering", "counts.T[..., None]", "counts.roll(1, 1).T[..., None]"),
    "modulus one too large": ("lowering", "% modulus.clamp(min=1)", "% (modulus + 1)"),
    "no modulus": ("lowering", "column = column % modulus.clamp(min=1)", "pass"),
    "count 0 is a count": ("lowering", "writes &= modulus > 0", "pass"),
    "ring in the absolute group": ("lowering", "if absolute or group.absolute else 0", "if absolute else 0"),
    "last column missing": ("lowering", "column <= last_column", "column < last_column"),
    "column past the table": ("lowering", "writes &= column <= last_column", "pass"),
    "unmapped page": ("lowering", "writes &= pages >= 0", "pass"),
    "int32 slots": ("lowering", "pages * rows_per_page + row, -1)", "(pages * rows_per_page).int() + row, -1)"),
    "boundary one late": ("lowering", "(position + 1) % ratio == 0", "position % ratio == 0"),
    "negative position": ("lowering", " & (position >= 0)", ""),
    "pages of compressed rows": ("lowering", "(position % page_tokens).div(ratio", "position.div(ratio"),
    "all rows wait": ("lowering", "verified | (ratio == 1)", "verified"),
    "no row waits": ("lowering", "writes &= verified | (ratio == 1)", "pass"),
    "position beyond int32": ("lowering", "return values.masked_fill(is_illegal(values), -1)", "return values"),
    "visible by request": ("visibility", "torch.minimum(position + 1, lens[:, None])", "lens[:, None] + 0 * position"),
    "visible by token": ("visibility", "torch.minimum(position + 1, lens[:, None])", "(position + 1)"),
    "visible one early": ("visibility", "torch.minimum(position + 1,", "torch.minimum(position + 2,"),
    "visible one late": ("visibility", "torch.minimum(position + 1,", "torch.minimum(position,"),
    "visible negative": ("visibility", ".clamp(min=0)", ""),
    "one token more verified": ("visibility", "(s < commit)", "(s <= commit)"),
    "commit past the step": ("visibility", " & (commit <= seq)", ""),
    "length ignores the commit": ("positions", "lens = first + commit\n", "lens = first + seq\n"),
    "length wraps": ("positions", "is_illegal(first | lens)", "is_illegal(lens.int().long())"),
    "negative start, legal length": ("positions", "is_illegal(first | lens)", "is_illegal(lens)"),
    "positions from one": ("positions", "torch.arange(seq,", "1 + torch.arange(seq,"),
}


@pytest.fixture(scope="module")
def examples() -> list[StepInputs]:
    found: list[StepInputs] = []

    @settings(max_examples=400, derandomize=True, database=None, deadline=None)
    @given(steps())
    def collect(inputs: StepInputs) -> None:
        found.append(inputs)

    collect()
    return found


def differs(inputs: StepInputs) -> bool:
    built = inputs.build()
    return any(getattr(built, name).tolist() != expected for name, expected in expected_step(inputs).items())


def mutated(module: ModuleType, old: str, new: str) -> ModuleType:
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {module.__name__}"
    copy = ModuleType(module.__name__)
    exec(compile(source.replace(old, new), f"{module.__name__} mutated", "exec"), copy.__dict__)
    return copy


def test_no_fault_no_difference(examples: list[StepInputs]) -> None:
    assert not any(map(differs, examples))


@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_fault_is_seen(fault: str, examples: list[StepInputs], monkeypatch: pytest.MonkeyPatch) -> None:
    name, old, new = MUTATIONS[fault]
    module = importlib.import_module(f"decode_metadata.{name}")
    copy = mutated(module, old, new)
    for taken, value in vars(step).items():
        if getattr(value, "__module__", None) == module.__name__ and hasattr(copy, taken):
            monkeypatch.setattr(step, taken, getattr(copy, taken))
    # `positions` takes the check from `lowering`, which a fault there changes for it too.
    if name == "lowering":
        monkeypatch.setattr("decode_metadata.positions.legal_or_minus_one", copy.legal_or_minus_one)
    assert any(map(differs, examples))
