"""One decode step's metadata on the host: the builder, a loop over tokens with `.item()`, and one torch operation.

    python benchmarks/metadata.py

The least processor time of interleaved rounds, so that other load falls out, on one thread: the work is launch
overhead, not arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from decode_metadata import CacheGeometry, CacheTables, DecodeMetadata, build_step, cache_tables

BATCHES, SEQS = (4, 64, 256), (1, 2, 4)
ROUNDS = 5
TURNS = {"builder": 20, "operation": 20}
"""Measurements in a round, 1 where none is named: the loop takes as long as all of the builder's."""


def loop_step(
    starts: torch.Tensor, *, seq: int, pages: CacheTables, geometry: CacheGeometry
) -> dict[str, torch.Tensor]:
    """The same step, token by token and row by row, reading each number of a tensor as it comes up."""
    tokens = len(starts) * seq
    out: dict[str, torch.Tensor] = {group.slots: torch.full((tokens,), -1) for group in geometry.groups}
    for name in ("swa_lens", "csa_visible", "hca_visible"):
        out[name] = torch.zeros(tokens, dtype=torch.int32)
    out["swa_indices"] = torch.full((tokens, geometry.window), -1, dtype=torch.int32)
    ori = pages.tables["ori_block_table"]
    for token in range(tokens):
        request, s = divmod(token, seq)
        position = int(starts[request].item()) + s
        for index, group in enumerate(geometry.groups):
            if (position + 1) % group.ratio:
                continue
            column = position // group.page_tokens
            if not group.absolute:
                column %= int(pages.counts[request, index].item())
            page = int(pages.tables[group.table][request, column].item())
            out[group.slots][token] = page * group.rows_per_page + position % group.page_tokens // group.ratio
        length = min(position + 1, geometry.window)
        for k in range(length):
            attended = position - length + 1 + k
            page = int(ori[request, attended // geometry.page_tokens].item())
            out["swa_indices"][token, k] = page * geometry.page_tokens + attended % geometry.page_tokens
        out["swa_lens"][token] = length
        out["csa_visible"][token] = (position + 1) // geometry.csa_ratio
        out["hca_visible"][token] = (position + 1) // geometry.hca_ratio
    return out


def seconds(call: Callable[[], object], *, calls: int) -> float:
    began = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - began) / calls


def least(calls: dict[str, tuple[Callable[[], object], int]]) -> dict[str, float]:
    """Processor seconds a call, each name's least over rounds in which every one has its turn."""
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, (call, number) in calls.items():
            rounds[name] += [seconds(call, calls=number) for _ in range(TURNS.get(name, 1))]
    return {name: min(times) for name, times in rounds.items()}


def check_equal(step: DecodeMetadata, looped: dict[str, torch.Tensor]) -> None:
    for name, tensor in looped.items():
        if not torch.equal(getattr(step, name), tensor):
            raise AssertionError(f"{name} of the builder is not that of the loop")


def measure(batch: int, seq: int) -> dict[str, float]:
    geometry = CacheGeometry()
    starts = torch.arange(batch) * 131 % 16_000
    pages = cache_tables(starts.tolist(), seq=seq, geometry=geometry)
    few = torch.ones(1, dtype=torch.int64)

    def fast() -> DecodeMetadata:
        return build_step(starts, seq=seq, block_tables=pages.tables, block_counts=pages.counts, geometry=geometry)

    def loop() -> dict[str, torch.Tensor]:
        return loop_step(starts, seq=seq, pages=pages, geometry=geometry)

    check_equal(fast(), loop())
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "builder": (fast, 1), "loop": (loop, 1), "operation": (lambda: few + 1, 100),
    }  # fmt: skip
    return least(calls)


def main() -> None:
    torch.set_num_threads(1)
    table = Table(title="one decode step's metadata", box=None, pad_edge=False)
    for heading in (
        "batch",
        "seq",
        "builder us",
        "loop us",
        "loop / builder",
        "one operation us",
        "builder / operation",
    ):
        table.add_column(heading, justify="right")
    for batch in BATCHES:
        for seq in SEQS:
            times = measure(batch, seq)
            builder, loop, operation = (times[name] for name in ("builder", "loop", "operation"))
            table.add_row(
                str(batch), str(seq), f"{builder * 1e6:.0f}", f"{loop * 1e6:.0f}", f"{loop / builder:.0f}",
                f"{operation * 1e6:.2f}", f"{builder / operation:.0f}",
            )  # fmt: skip
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
