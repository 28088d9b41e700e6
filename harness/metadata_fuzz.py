"""Fuzzing decode metadata: the host builder and the device builder against a scalar oracle, bit for bit.

The oracle belongs to the tests: it is a file of a source checkout and loaded from there, so an installed package
without its sources cannot fuzz.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import decode_metadata
from decode_metadata import StepInputs
from golden.poison import poison_
from harness.devices.base import Device
from harness.devices.registry import open_device
from harness.registry import load_registry
from harness.stage import Stage

DEVICE_BUILDER = "decode_prepare"
"""The stage that lowers a step on a device."""

ORACLE = Path(decode_metadata.__file__).parent.parent / "tests" / "decode_metadata" / "oracle.py"

PROCESSES = 2
CHUNK = 1000
"""Examples of one search: hypothesis remembers every example of a search, so memory grows with its length."""

Oracle = Callable[[StepInputs], dict[str, list[Any]]]
ABSOLUTE = 2**31 - 1
"""The count that leaves a group's columns as they are."""


@dataclass(frozen=True)
class Difference:
    """The smallest example found on which a builder is not the oracle; `inputs` is the code that makes it."""

    inputs: str
    reason: str


@dataclass(frozen=True)
class FuzzResult:
    """What a run of examples showed; `peak_bytes` is the sum of the processes' largest resident sets."""

    examples: int
    seconds: float
    peak_bytes: int
    difference: Difference | None


def fuzz_metadata(
    *, examples: int, seed: int, processes: int = PROCESSES, advance: Callable[[int], None] | None = None
) -> FuzzResult:
    """Run `examples` random steps in chunks over `processes`, and stop at the first chunk that finds a difference.

    The same seed gives the same examples. `advance` hears of each chunk's number of examples. Raises ValueError for a
    count below 1, and where the oracle, the stage `decode_prepare` or the simulator is missing.
    """
    for name, value in (("examples", examples), ("processes", processes)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    load_oracle()
    load_registry().stage(DEVICE_BUILDER)
    open_device("sim")
    began = time.perf_counter()
    done, peaks, difference = 0, dict[int, int](), None
    # Spawned, since a child forked from a process whose torch has used threads can hang.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for chunk in _as_completed(pool, examples, seed, processes):
            done += chunk.examples
            peaks[chunk.process] = chunk.peak_bytes
            if advance is not None:
                advance(chunk.examples)
            if chunk.difference:
                difference = chunk.difference
                break
    return FuzzResult(done, time.perf_counter() - began, sum(peaks.values()), difference)


@dataclass(frozen=True)
class _Chunk:
    process: int
    examples: int
    peak_bytes: int
    difference: Difference | None


def _as_completed(pool: ProcessPoolExecutor, examples: int, seed: int, processes: int) -> Iterator[_Chunk]:
    """Chunks as they finish, a few in flight so that stopping early leaves little running."""
    chunks = iter(range(0, examples, CHUNK))
    running: set[Future[_Chunk]] = set()
    while True:
        for first in chunks:
            running.add(pool.submit(run_chunk, min(CHUNK, examples - first), seed=(seed << 32) + first))
            if len(running) > processes:
                break
        if not running:
            return
        finished, running = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            yield future.result()


def run_chunk(examples: int, *, seed: int) -> _Chunk:
    """One search of `examples` steps in this process."""
    import hypothesis

    from decode_metadata.strategies import steps

    torch.set_num_threads(1)
    oracle, stage, device = load_oracle(), load_registry().stage(DEVICE_BUILDER).stage, open_device("sim")
    count, found = 0, None

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink), print_blob=False, report_multiple_bugs=False,
    )  # fmt: skip
    @hypothesis.given(steps())
    def search(inputs: StepInputs) -> None:
        nonlocal count, found
        count += 1
        reason = difference(inputs, oracle=oracle, stage=stage, device=device)
        if reason is not None:
            # The last one that hypothesis tries is the smallest.
            found = Difference(repr(inputs), reason)
            raise AssertionError(reason)

    try:
        search()
    except AssertionError:
        if found is None:
            raise
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _Chunk(multiprocessing.current_process().pid or 0, count, peak_bytes, found)


def difference(inputs: StepInputs, *, oracle: Oracle, stage: Stage, device: Device) -> str | None:
    """Where the host's or the device's step is not the oracle's, or None."""
    expected = oracle(inputs)
    host = inputs.build()
    reason = first_difference("host", {name: getattr(host, name) for name in expected}, expected)
    if reason is not None:
        return reason
    # A device writes every row, whatever is verified; how far a token sees is in the lengths that it is given.
    written = expected if inputs.commit_tokens is None else oracle(replace(inputs, commit_tokens=None))
    seen = {name: expected[name] for name in expected if name.endswith("_visible") or name == "kv_seq_lens"}
    expected = {**written, **seen}
    try:
        built = device_step(inputs, expected, stage=stage, device=device)
    except Exception as error:
        return f"device: {type(error).__name__}: {error}"
    return first_difference("device", built, expected)


def device_step(
    inputs: StepInputs, given: Mapping[str, list[Any]], *, stage: Stage, device: Device
) -> dict[str, torch.Tensor]:
    """The outputs of the stage on the step's tables and counts and on `given`'s positions and lengths."""
    geometry, tokens = inputs.geometry, inputs.batch * inputs.seq
    counts = inputs.block_counts()
    if counts is None:
        counts = torch.full((inputs.batch, len(geometry.groups)), ABSOLUTE, dtype=torch.int32)
    outputs = {group.slots: torch.empty(tokens, dtype=torch.int64) for group in geometry.groups}
    outputs |= {name: torch.empty(tokens, dtype=torch.int32) for name in ("swa_lens", "csa_visible", "hca_visible")}
    outputs["swa_indices"] = torch.empty(tokens, geometry.window, dtype=torch.int32)
    sizes = ("page_tokens", "csa_ratio", "hca_ratio", "csa_state_page_tokens", "hca_state_page_tokens")
    arguments: dict[str, Any] = {
        **{name: torch.tensor(given[name], dtype=torch.int32) for name in ("position_ids", "kv_seq_lens")},
        **inputs.block_tables(),
        "block_counts": counts,
        **{name: getattr(geometry, name) for name in sizes},
        "swa_window": geometry.window,
        **{name: poison_(output) for name, output in outputs.items()},
    }
    with device.active() as log:
        stage.launch(**arguments)
    if log.violations:
        raise ValueError(log.violations[0].text)
    return outputs


def first_difference(who: str, built: Mapping[str, torch.Tensor], expected: Mapping[str, list[Any]]) -> str | None:
    """`host csa_visible[3] is 2, the oracle has 1`, or None. Only what `built` has is compared."""
    for name, tensor in built.items():
        if tensor.tolist() != expected[name]:
            wanted = torch.tensor(expected[name], dtype=torch.int64)
            at = tuple((tensor != wanted).nonzero()[0].tolist())
            return f"{who} {name}{list(at)} is {tensor[at]}, the oracle has {wanted[at]}"
    return None


@lru_cache(maxsize=1)
def load_oracle() -> Oracle:
    """`expected_step` of the tests' tree. Raises ValueError if there is none."""
    if not ORACLE.is_file():
        raise ValueError(f"fuzzing needs a source checkout: the oracle is not at {ORACLE}")
    spec = importlib.util.spec_from_file_location("touchstone_metadata_oracle", ORACLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    oracle: Oracle = module.expected_step
    return oracle
