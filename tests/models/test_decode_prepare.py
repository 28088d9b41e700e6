"""The device-side builder: the host's bits, from any table, in two launches and one compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from decode_metadata import CacheGeometry, StepInputs, position_regimes
from decode_metadata.strategies import steps
from harness.devices.registry import open_device
from harness.golden_cache import GoldenCache
from harness.metadata_fuzz import device_step, difference
from harness.run import run_case
from models.deepseek_v4 import decode_prepare
from models.deepseek_v4.config import TINY
from tests.decode_metadata.oracle import expected_step
from tests.models.changed_copy import changed_copy
from tests.models.fixture import case_at

SIM = open_device("sim")
SMALL = CacheGeometry(window=5, page_tokens=8, csa_ratio=4, hca_ratio=8, csa_state_page_tokens=4)
# decode-spec, appendix A: one request's tables in the groups' order, and its counts.
TRACE = StepInputs(
    starts=(125,),
    seq=6,
    tables=(
        ((10, 11),), ((7, 8),), ((5, 6),), ((3, 2),), (tuple(range(40, 57)),), ((20, 21, 22, 23),), ((33, 31, 30, 32),),
    ),
    counts=((2, 2, 2, 2, 17, 4, 4),),
)  # fmt: skip


def device_lists(inputs: StepInputs) -> Mapping[str, Any]:
    built = device_step(inputs, expected_step(inputs), stage=decode_prepare.STAGE, device=SIM)
    return {name: tensor.tolist() for name, tensor in built.items()}


def differs(inputs: StepInputs, launch: Any = decode_prepare.launch) -> str | None:
    stage = replace(decode_prepare.STAGE, launch=launch)
    return difference(inputs, oracle=expected_step, stage=stage, device=SIM)


def test_the_worked_trace() -> None:
    built = device_lists(TRACE)
    assert built["ori_slot_mapping"] == [1405, 1406, 1407, 1408, 1409, 1410]
    assert built["swa_lens"] == [126, 127, 128, 128, 128, 128]
    assert built["csa_cmp_slot_mapping"] == [-1, -1, 191, -1, -1, -1]
    assert built["csa_state_slot_mapping"] == [93, 94, 95, 80, 81, 82]
    assert built["hca_cmp_slot_mapping"] == [-1, -1, 7, -1, -1, -1]
    assert built["csa_visible"] == [31, 31, 32, 32, 32, 32]
    assert built["hca_visible"] == [0, 0, 1, 1, 1, 1]
    assert built["swa_indices"][3] == [*range(1281, 1409)]


@settings(max_examples=50, deadline=None)
@given(steps())
def test_device_and_host_are_the_oracle(inputs: StepInputs) -> None:
    assert differs(inputs) is None


@pytest.mark.parametrize("width", [0, 1, 2, 16384, 131_072])
def test_tables_of_any_width(width: int) -> None:
    """G10: wide rows, and no column that a table does not have, least of all page 0 in its place."""
    last = max(width * 8 - 2, 0)
    row = tuple(range(width))
    inputs = StepInputs((last,), 3, ((row,),) * 7, None, None, SMALL)
    slots = device_lists(inputs)["ori_slot_mapping"]
    assert slots == ([-1, -1, -1] if width == 0 else [last, last + 1, -1])
    assert differs(inputs) is None


@pytest.mark.parametrize("seq", [1, 2, 8])
def test_every_position_to_600(seq: int) -> None:
    """G10: without counts, columns past the table are -1, whatever the group's page."""
    for start in range(0, 600, 64 * seq):
        starts = tuple(range(start, start + 64 * seq, seq))
        inputs = StepInputs(starts, seq, (((5, 2, 7),) * 64,) * 7)
        assert differs(inputs) is None


@pytest.mark.parametrize("seq", [1, 2, 8])
def test_every_regime(seq: int) -> None:
    """Page edges to the last position of a million, with counts 2 to 10 that differ by request and group."""
    starts = position_regimes(seq=seq, max_position=1_048_576)
    tables = tuple(
        tuple(tuple(range(1000 * g + 16 * r, 1000 * g + 16 * r + 10)) for r in range(len(starts))) for g in range(7)
    )
    counts = tuple(tuple(2 + (r + 2 * g) % 9 for g in range(7)) for r in range(len(starts)))
    assert differs(StepInputs(starts, seq, tables, counts)) is None


def test_page_5_and_position_130() -> None:
    built = device_lists(StepInputs((130,), 1, (((5,),),) * 7))
    assert [built[name] for name in decode_prepare.SLOTS] == [[-1]] * 7
    assert built["swa_lens"] == [128]
    # Positions 3 to 127 are on the page that there is.
    assert built["swa_indices"] == [[*range(643, 768), -1, -1, -1]]


def test_huge_pages_are_rows_in_int64_and_no_rows_in_int32() -> None:
    built = device_lists(StepInputs((1,), 1, (((2**31 - 1,),),) * 7, ((1,) * 7,)))
    assert built["ori_slot_mapping"] == [(2**31 - 1) * 128 + 1]
    assert built["hca_state_slot_mapping"] == [(2**31 - 1) * 8 + 1]
    assert built["swa_indices"][0][:2] == [-1, -1]
    assert built["swa_lens"] == [2]


def test_two_launches() -> None:
    case = case_at(TINY, 8190, 127, seq=2)
    report = run_case(decode_prepare.STAGE, case, device=SIM, golden_cache=GoldenCache(folder=None))
    assert report.passed
    assert [(launch.kernel, launch.grid) for launch in report.traffic] == [
        ("slots_kernel", (1, 1, 1)),
        ("window_kernel", (4, 1, 1)),
    ]


def test_one_compilation_for_every_batch_seq_and_width() -> None:
    kernels = (decode_prepare.slots_kernel, decode_prepare.window_kernel)
    device_lists(TRACE)
    before = [len(cache) for kernel in kernels for cache in _caches(kernel)]
    assert sum(before) > 0
    for batch, seq, width in [(1, 1, 1), (2, 8, 16), (64, 2, 3), (16, 4, 0), (64, 8, 17)]:
        inputs = StepInputs(tuple(range(batch)), seq, ((tuple(range(width)),) * batch,) * 7)
        assert differs(inputs) is None
    assert [len(cache) for kernel in kernels for cache in _caches(kernel)] == before


def test_one_store_an_output_and_no_integer_division() -> None:
    """What the Ascend compiler receives: A2 divides int32 in inexact fp32 and takes remainders in a scalar loop."""
    device_lists(TRACE)
    for kernel, stores in ((decode_prepare.slots_kernel, 10), (decode_prepare.window_kernel, 1)):
        for compiled in (entry for cache in _caches(kernel) for entry in cache.values()):
            ir = compiled.asm["ttadapter"]
            assert ir.count("materialize_in_destination") == stores
            assert [name for name in ("divsi", "divui", "remsi", "remui", "floordivsi") if name in ir] == []


def _caches(kernel: Any) -> list[Any]:
    """Triton keeps one cache of compiled kernels a device."""
    cache = kernel.cache if hasattr(kernel, "cache") else kernel.device_caches
    return [entry[0] if isinstance(entry, tuple) else entry for entry in cache.values()]


BAD = [
    ({"csa_ratio": 256}, "csa_ratio must be at most 128, got 256"),
    ({"csa_ratio": 3}, "csa_ratio must be a power of two, got 3"),
    ({"csa_state_page_tokens": 1}, "csa_state_page_tokens must be at least 2, got 1"),
    ({"swa_window": 64}, "swa_indices must have shape [6, 64], got [6, 128]"),
    ({"kv_seq_lens": torch.zeros(4, dtype=torch.int32)}, "block_counts must have shape [4, 7], got [1, 7]"),
    ({"idx_block_table": torch.zeros(2, 3, dtype=torch.int32)}, "idx_block_table must have shape [1, any], got [2, 3]"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_bad_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    def launch(**t: Any) -> None:
        decode_prepare.launch(**{**t, **changes})

    stage = replace(decode_prepare.STAGE, launch=launch)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        device_step(TRACE, expected_step(TRACE), stage=stage, device=SIM)
    assert str(error.value) == message


# fault: what the kernels say, what they would say
MUTATIONS = {
    "window starts one early": ("oldest = position - length + 1", "oldest = position - length"),
    "window past the table": ("if first + i < width:", "if first + i <= width:"),
    "window row wraps": (" & (page <= (2147483647 - row) >> SHIFT)", ""),
    "another group's count": ("idx_width, tl.load(counts + 3)", "idx_width, tl.load(counts + 2)"),
    "count 0 is a count": ("writes = writes & (count > 0)", "writes = writes"),
    "column past the table": ("writes = writes & (column < width)", "writes = writes"),
    "int32 slots": ("page.to(tl.int64) * (1 <<", "page * (1 <<"),
    "boundary one late": ("== last)\n    if count", "== 0)\n    if count"),
    "visible by request": ("tl.minimum(by_token, lens >> RATIO_SHIFT)", "lens >> RATIO_SHIFT"),
    "the first request's rows": ("tl.minimum(row_of(token, reciprocal), batch - 1)", "token * 0"),
}


@pytest.fixture(scope="module")
def examples() -> list[StepInputs]:
    huge_page = StepInputs((1,), 1, (((2**31 - 1,),),) * 7, ((1,) * 7,), None, SMALL)
    found: list[StepInputs] = [huge_page]

    @settings(max_examples=100, derandomize=True, database=None, deadline=None)
    @given(steps(geometry=SMALL))
    def collect(inputs: StepInputs) -> None:
        found.append(inputs)

    collect()
    return found


@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_fault_is_seen(fault: str, examples: list[StepInputs], tmp_path: Path) -> None:
    old, new = MUTATIONS[fault]
    with changed_copy(decode_prepare, old, new, tmp_path) as copy:
        assert any(differs(inputs, copy.launch) is not None for inputs in examples)
