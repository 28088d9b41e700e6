"""Whether a step's values can be right: for the host, where a wait for the device does no harm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

import torch

from decode_metadata.checks import INT32_MAX
from decode_metadata.geometry import CacheGroup

if TYPE_CHECKING:
    from decode_metadata.step import DecodeMetadata

__all__ = ["check_step"]


def check_step(step: DecodeMetadata, *, pool_pages: Mapping[str, int]) -> None:
    """Raise ValueError naming the first offending tensor, request, token and value; see `DecodeMetadata.validate`."""
    if not step.seq:
        return
    position = step.position_ids.view(step.batch, step.seq).to(torch.int64)
    # Position 0 may follow -1: a padding request's last token.
    gap = (position[:, 1:] != position[:, :-1] + 1) & (position[:, 1:] > 0)
    _fail(step, "position_ids", torch.nn.functional.pad(gap, (1, 0)), "must follow the position before it")
    for group in step.geometry.groups:
        _check_pages(step, group, pool_pages.get(group.name))
    for group in step.geometry.groups:
        _check_ring(step, group, position)
        _check_slots(step, group, position, pool_pages.get(group.name))
    _check_window(step, position)
    _check_visible(step, position)


def _check_pages(step: DecodeMetadata, group: CacheGroup, pages: int | None) -> None:
    """Pages within the pool, the pool within int32's rows, and no page with two owners among live requests."""
    table = _live_table(step, group)
    if pages is not None and pages * group.rows_per_page > INT32_MAX + 1:
        raise ValueError(f"pool_pages[{group.name!r}] must stay below 2^31 rows, got {pages} x {group.rows_per_page}")
    outside = (table < -1) | (table >= (INT32_MAX + 1 if pages is None else pages))
    if bool(outside.any()):
        request, column = outside.nonzero()[0].tolist()
        limit = "a page" if pages is None else f"one of the pool's {pages} pages"
        _fail_at(f"{group.table}[{request}, {column}]", request, int(table[request, column]), f"must be -1 or {limit}")
    request, column = (table >= 0).nonzero(as_tuple=True)
    page, order = table[request, column].sort(stable=True)
    request, column = request[order], column[order]
    # A ring's page repeats in its own row; a page of the whole history may not.
    again = (page[1:] == page[:-1]) & ((request[1:] != request[:-1]) | (group.reach is None))
    if bool(again.any()):
        at = int(again.nonzero()[0])
        owner = int(request[at])
        _fail_at(
            f"{group.table}[{int(request[at + 1])}, {int(column[at + 1])}]", int(request[at + 1]), int(page[at]),
            f"is owned already, by request {owner} at column {int(column[at])}",
        )  # fmt: skip


def _check_ring(step: DecodeMetadata, group: CacheGroup, position: torch.Tensor) -> None:
    """Rows that a token reads back and rows that the step writes are different rows."""
    if group.reach is None:
        return
    first = (position[:, :1] - group.reach + 1).clamp(min=0)
    span = torch.arange(group.reach + step.seq - 1, device=position.device)
    rows = first + span
    last = position.max(dim=1, keepdim=True).values
    live = (position[:, :1] >= 0) & (rows <= last)
    slot = _expected_slots(step, group, rows)
    slot = torch.where(live & (slot >= 0), slot, -1 - span)
    taken, order = slot.sort(dim=1, stable=True)
    again = (taken[:, 1:] == taken[:, :-1]) & (taken[:, 1:] >= 0)
    if bool(again.any()):
        request, at = again.nonzero()[0].tolist()
        one, other = (int(rows[request, order[request, at + i]]) for i in (0, 1))
        _fail_at(
            f"{group.table}[{request}]", request, int(taken[request, at]),
            f"is the row of positions {one} and {other}: too short a ring for reach {group.reach} and seq {step.seq}",
        )  # fmt: skip


def _check_slots(step: DecodeMetadata, group: CacheGroup, position: torch.Tensor, pages: int | None) -> None:
    """Every slot -1 or the row that its position has; none written twice."""
    slots = getattr(step, group.slots).view(position.shape).to(torch.int64)
    completes = (position >= 0) & ((position + 1) % group.ratio == 0)
    expected = _expected_slots(step, group, position)
    limit = INT32_MAX + 1 if pages is None else pages * group.rows_per_page
    _fail(step, group.slots, (slots < -1) | (slots >= limit), f"must be -1 or one of {limit} rows")
    _fail(step, group.slots, (slots >= 0) & ~completes, "must be -1: the token completes no row")
    _fail(step, group.slots, (slots >= 0) & (slots != expected), "must be the row of its position", expected)
    flat = slots.flatten()
    taken, order = flat.sort(stable=True)
    again = (taken[1:] == taken[:-1]) & (taken[1:] >= 0)
    if bool(again.any()):
        at = int(again.nonzero()[0])
        twice = torch.zeros_like(flat, dtype=torch.bool)
        twice[order[at + 1]] = True
        first = int(order[at])
        _fail(step, group.slots, twice, f"is written by request {first // step.seq} token {first % step.seq} too")


def _check_window(step: DecodeMetadata, position: torch.Tensor) -> None:
    window = step.geometry.window
    lens = torch.where(position >= 0, torch.clamp(position + 1, max=window), 0)
    _fail(step, "swa_lens", step.swa_lens.view(lens.shape) != lens, "must be min(position + 1, window)", lens)
    k = torch.arange(window, device=position.device)
    rows = _expected_slots(step, step.geometry.groups[0], (position - lens + 1).flatten()[:, None] + k)
    rows = torch.where(k < lens.flatten()[:, None], rows, -1)
    wrong = step.swa_indices != rows
    if bool(wrong.any()):
        token, at = wrong.nonzero()[0].tolist()
        name = f"swa_indices[{token}, {at}]"
        want = f"must be {int(rows[token, at])}, the row of its own request's position"
        _fail_at(name, token // step.seq, int(step.swa_indices[token, at]), want, token=token % step.seq)


def _check_visible(step: DecodeMetadata, position: torch.Tensor) -> None:
    for name, ratio in (("csa_visible", step.geometry.csa_ratio), ("hca_visible", step.geometry.hca_ratio)):
        by_token = torch.where(position >= 0, position + 1, 0) // ratio
        by_request = step.kv_seq_lens.to(torch.int64).clamp(min=0)[:, None] // ratio
        want = torch.minimum(by_token, by_request)
        got = getattr(step, name).view(position.shape)
        _fail(step, name, got != want, f"must be min(position + 1, kv_seq_len) // {ratio}", want)


def _live_table(step: DecodeMetadata, group: CacheGroup) -> torch.Tensor:
    """int64 `[B, columns]`: the columns that count, of requests with a position; -1 elsewhere."""
    table = step.block_tables[group.table].to(torch.int64)
    live = step.position_ids.view(step.batch, -1).max(dim=1).values >= 0
    column = torch.arange(table.shape[1], device=table.device)
    counted = live[:, None].expand(table.shape)
    if step.block_counts is not None and not group.absolute:
        index = step.geometry.groups.index(group)
        counted = counted & (column < step.block_counts[:, index : index + 1])
    return torch.where(counted, table, -1)


def _expected_slots(step: DecodeMetadata, group: CacheGroup, position: torch.Tensor) -> torch.Tensor:
    """int64, the shape of `position` `[B or T, n]`: the row of each position's group of tokens, or -1."""
    table = step.block_tables[group.table].to(torch.int64)
    request = torch.arange(len(position), device=position.device)[:, None] // (len(position) // step.batch)
    column = position.clamp(min=0) // group.page_tokens
    mapped = position >= 0
    if step.block_counts is not None and not group.absolute:
        count = step.block_counts[:, step.geometry.groups.index(group)].to(torch.int64)[request]
        mapped &= count > 0
        column = column % count.clamp(min=1)
    mapped &= column < table.shape[1]
    if not table.shape[1]:
        return torch.full_like(position, -1)
    page = table[request, torch.where(mapped, column, 0)]
    row = position % group.page_tokens // group.ratio
    return torch.where(mapped & (page >= 0), page * group.rows_per_page + row, -1)


def _fail(
    step: DecodeMetadata, name: str, bad: torch.Tensor, reason: str, expected: torch.Tensor | None = None
) -> None:
    """Raise for the first token marked in `bad`, if any."""
    marked = bad.flatten().nonzero()
    if not len(marked):
        return
    token = int(marked[0])
    if expected is not None:
        reason = f"{reason}: {int(expected.flatten()[token])}"
    value = int(getattr(step, name).flatten()[token])
    _fail_at(f"{name}[{token}]", token // step.seq, value, reason, token=token % step.seq)


def _fail_at(name: str, request: int, value: int, reason: str, *, token: int | None = None) -> NoReturn:
    where = f"request {request}" if token is None else f"request {request}, token {token}"
    raise ValueError(f"{name} ({where}) is {value}: {reason}")
