from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from golden.specs import ScalarSpec, TensorSpec, check_specs


def spec(**changes: object) -> TensorSpec:
    arguments: dict[str, object] = {"name": "x", "shape": (2, 4), "dtype": torch.float32, "fill": 0.0}
    return TensorSpec(**(arguments | changes))  # type: ignore[arg-type]


def test_a_spec_creates_its_tensor() -> None:
    assert spec(fill=1.5).create().tolist() == [[1.5] * 4] * 2
    columns = torch.arange(8, dtype=torch.float32).view(4, 2).T
    made = spec(fill=columns).create()
    assert torch.equal(made, columns)
    assert made.is_contiguous()
    made.zero_()
    assert columns[1, 3].item() == 7.0
    assert spec(fill=lambda shape, dtype: torch.full(shape, 3, dtype=dtype)).create().tolist() == [[3.0] * 4] * 2


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "tensor's shape": (lambda: spec(fill=torch.ones(4)), "'x': fill gave shape (4,), not (2, 4)"),
    "tensor's dtype": (lambda: spec(fill=torch.ones(2, 4, dtype=torch.int8)), "'x': fill gave dtype torch.int8"),
    "int8 300": (lambda: spec(dtype=torch.int8, fill=300), "'x': fill 300 is not a value of torch.int8"),
    "int32 2.7": (lambda: spec(dtype=torch.int32, fill=2.7), "'x': fill 2.7 is not a value of torch.int32"),
    "nan": (lambda: spec(fill=math.nan), "'x': fill must be finite, got nan"),
    "call's shape": (lambda: spec(fill=lambda s, d: torch.ones(4)).create(), "'x': fill gave shape (4,), not (2, 4)"),
    "call's type": (lambda: spec(fill=lambda s, d: [0]).create(), "'x': fill gave list, not a tensor"),
    "unknown": (lambda: spec(fill="ones"), "'x': fill must be a number, a tensor or a callable, got str"),
    "too low": (lambda: spec(fill=0.0, low=1.0), "'x': value 0.0 is below 1.0"),
    "too high": (lambda: spec(fill=lambda s, d: torch.ones(s), high=0.5).create(), "'x': value 1.0 is above 0.5"),
    "nan within a range": (
        lambda: spec(fill=torch.full((2, 4), math.nan), low=0.0),
        "'x': value nan is below 0.0",
    ),
    "shape": (lambda: spec(shape=(2, -1)), "'x': shape must hold integers >= 0, got (2, -1)"),
    "role": (lambda: spec(role="output"), "'x': role must be one of"),
    "filled output": (lambda: spec(role="out"), "'x': role 'out' is poisoned before a launch, so fill must be None"),
    "empty input": (lambda: spec(fill=None), "'x': role 'in' needs a fill"),
    "rows of an input": (lambda: spec(written_rows="slots"), "written_rows is for role 'inout', got role 'in'"),
    "path": (lambda: spec(name="../../evil"), "name must be a Python identifier, got '../../evil'"),
    "code": (lambda: spec(name='x"); import os #'), "name must be a Python identifier"),
    "nameless": (lambda: spec(name=""), "name must be a Python identifier, got ''"),
    "keyword": (lambda: spec(name="lambda"), "name must be a Python identifier, got 'lambda'"),
    "output created": (lambda: spec(role="out", fill=None).create(), "'x': role 'out' has no contents to create"),
    "scalar": (lambda: ScalarSpec("eps", math.inf), "ScalarSpec 'eps': value must be finite, got inf"),
    "scalar's range": (lambda: ScalarSpec("eps", 2, high=1), "ScalarSpec 'eps': value 2 is above 1"),
    "two of a name": (lambda: check_specs([spec(), ScalarSpec("x", 1)]), "two specs are named 'x'"),
    "rows of nothing": (
        lambda: check_specs([spec(role="inout", written_rows="slots")]),
        "'x': written_rows 'slots' is no integer input",
    ),
    "rows of floats": (
        lambda: check_specs([spec(name="slots"), spec(role="inout", written_rows="slots")]),
        "'x': written_rows 'slots' is no integer input",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_specs_are_named(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises((ValueError, TypeError)) as error:
        make()
    assert message in str(error.value)


def test_specs_that_belong_together() -> None:
    mapping = spec(name="slots", shape=(2,), dtype=torch.int64, fill=-1)
    check_specs([mapping, spec(role="inout", written_rows="slots"), ScalarSpec("eps", 1e-6)])
