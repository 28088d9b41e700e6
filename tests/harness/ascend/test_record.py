from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from harness.ascend.record import Buffer, Diagnosis, KernelRecord, Memory, ModuleFacts, ScalarLoop

FACTS = ModuleFacts(
    core="mixed", memory=(Memory("ub", 90, 100, (Buffer("8xf32", 32, 2, "k.py:1"),)),), multi_buffers=1,
    loads_in_loop=True, workspace_bytes=None, cube_instructions=1, vector_instructions=2, transfers=3,
    syncs={"set_flag": 1}, scalar_loops=(ScalarLoop("k.py:2", 63, 1),), element_dmas=(),
)  # fmt: skip
RECORD = KernelRecord(kernel="k", chip="a2", where="k.py:1", constants={"N": 8}, facts=FACTS, buffering="kept")


def test_limits_themselves_fit() -> None:
    assert RECORD.fit
    assert RECORD.accepted


@pytest.mark.parametrize(
    ("facts", "buffering", "problem"),
    [
        ({"memory": (Memory("ub", 91, 100),)}, "kept", "ub is 91% full"),
        ({"memory": (Memory("ub", 9001, 10000),)}, "kept", "ub is 90% full, more than 90%"),
        ({}, "dropped", "double buffering is dropped"),
        ({"scalar_loops": (ScalarLoop("k.py:2", 64, 1),)}, "kept", "k.py:2: a loop of 64 trips"),
        ({"scalar_loops": (ScalarLoop("k.py:2", None, 1),)}, "kept", "an unknown number of trips"),
        ({"element_dmas": ("k.py:4",)}, "kept", "k.py:4: a transfer of one element"),
    ],
    ids=["ub", "ub-just", "buffering", "scalars", "unknown", "dma"],
)
def test_each_problem_is_named(facts: dict[str, Any], buffering: Any, problem: str) -> None:
    record = replace(RECORD, facts=replace(FACTS, **facts), buffering=buffering)
    (found,) = record.problems
    assert problem in found
    assert record.accepted
    assert not record.fit


def test_errors_are_the_problems() -> None:
    record = replace(RECORD, facts=None, errors=(Diagnosis("too big", "k.py:1", "make it small"),))
    assert record.problems == ("k.py:1: too big; make it small",)
    assert not record.accepted


def test_full_l1_and_single_buffered_vectors_are_no_problem() -> None:
    facts = replace(FACTS, memory=(Memory("l1", 99, 100),), cube_instructions=0)
    assert replace(RECORD, facts=facts, buffering="dropped").fit


@pytest.mark.parametrize("record", [RECORD, replace(RECORD, facts=None, errors=(Diagnosis("x"),), warnings=("w",))])
def test_json_gives_the_record_back(record: KernelRecord) -> None:
    assert KernelRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
