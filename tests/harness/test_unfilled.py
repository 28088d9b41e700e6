"""Arguments that take no memory have the specs' shapes, types and whole tensors."""

from __future__ import annotations

from pathlib import Path

import torch

from golden.specs import TensorSpec
from harness.unfilled import unfilled_arguments
from tests.harness.fakes import GAIN, case, specs

GIGABYTE = 1 << 30


def test_each_argument_has_its_spec_s_form() -> None:
    toy = {spec.name: spec for spec in specs(case())}
    arguments = unfilled_arguments(tuple(toy.values()))
    # `offset` is the golden's.
    assert list(arguments) == ["x", "slots", "pool", "y", "staging", "gain"]
    assert arguments.pop("gain") == GAIN
    for name, tensor in arguments.items():
        spec = toy[name]
        assert isinstance(spec, TensorSpec)
        assert (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) == (spec.shape, spec.dtype, True)
        # Triton compiles another kernel for a pointer that is less aligned than production's.
        assert tensor.data_ptr() % 512 == 0 or name == "slots"
        if not isinstance(spec.fill, torch.Tensor):
            assert not tensor.any()


def test_a_whole_tensor_is_a_copy() -> None:
    given = torch.arange(6).reshape(2, 3).t()
    (copied,) = unfilled_arguments([TensorSpec("x", (3, 2), torch.int64, given)]).values()
    assert copied.is_contiguous()
    copied += 1
    assert torch.equal(copied, given + 1)


def test_empty_and_scalar_shapes_and_bools() -> None:
    made = unfilled_arguments([TensorSpec("x", (0, 4), torch.bfloat16, 0), TensorSpec("y", (), torch.bool, 0)])
    assert made["x"].shape == (0, 4)
    assert made["y"].item() is False


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_what_nobody_touches_takes_no_memory() -> None:
    before = resident_bytes()
    made = unfilled_arguments([TensorSpec("x", (GIGABYTE,), torch.uint8, 0)])
    assert resident_bytes() - before < GIGABYTE // 8
    made["x"][: GIGABYTE // 4] = 1
    assert resident_bytes() - before >= GIGABYTE // 4
