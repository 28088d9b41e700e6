"""A draft that is rejected leaves nothing behind: every row that a token may still read is serial decoding's.

A step writes the rows of all its tokens, accepted or not (policy 2): the next one starts at the first that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import decode_metadata
from decode_metadata import CacheGeometry
from models.deepseek_v4.config import TINY
from tests.models.block_oracle import BLOCKS
from tests.models.decoding import Decoder, GoldenDecoder, KernelDecoder
from tests.models.fixture import case_at, golden_inputs
from tests.models.pools import GROUPS, POOLS
from tests.models.transformers_reference import Kind

LONGEST = 8
"""Tokens of a request that a case has pages for: a step, and one after it."""

COUNTS = [(2, 1), (2, 2), (4, 1), (4, 2), (4, 3), (4, 4)]
"""Tokens of a step, and how many of them are accepted."""


def readable(decoder: Decoder, ends: Sequence[int]) -> dict[str, Tensor]:
    """By pool, the rows that the token at each of `ends` may read of those before it."""
    geometry = CacheGeometry()
    end = torch.tensor(ends)
    counts = decoder.tables.block_counts
    assert counts is not None
    rows = {}
    for name, pool in decoder.pools.items():
        group = GROUPS[POOLS[name]]
        # The group of compressed rows under way, and where groups overlap the one before; the window; or all.
        if group.name == "ori":
            first = end - geometry.window + 1
        elif group.name == "hca_state":
            first = end // geometry.hca_ratio * geometry.hca_ratio
        elif group.reach is not None:
            first = (end // geometry.csa_ratio - 1) * geometry.csa_ratio
        else:
            first = torch.zeros_like(end)
        first = first.clamp(min=0)
        position = first[:, None] + torch.arange(int((end - first).max()))
        index = [known.name for known in geometry.groups].index(group.name)
        slots = decode_metadata.compressed_slot_mapping(
            torch.where(position < end[:, None], position, -1),
            decoder.tables.block_tables[group.table],
            ratio=group.ratio,
            page_tokens=group.page_tokens,
            counts=None if group.absolute else counts[:, index],
        )
        rows[name] = pool.flatten(0, 1)[slots[slots >= 0]]
    return rows


def check(decoder: type[Decoder], kind: Kind, starts: Sequence[int], *, seq: int, accepted: int, exactly: bool) -> None:
    caches = case_at(TINY, *starts, seq=LONGEST)
    true = golden_inputs(BLOCKS[kind], caches)["x_hc"].unflatten(0, (len(starts), LONGEST))
    draft = true[:, :seq].clone()
    draft[:, accepted:] *= -2

    speculating = decoder(BLOCKS[kind], caches, seq=seq, history=True)
    speculating.step(starts, draft)
    resumed = [start + accepted for start in starts]
    last = speculating.step(resumed, true[:, accepted : accepted + seq])

    serial = decoder(BLOCKS[kind], caches, seq=1, history=True)
    tokens = accepted + seq
    made = [serial.step([start + s for start in starts], true[:, s : s + 1]) for s in range(tokens)]
    for s in range(seq):
        for name in ("x_out", "y_hc"):
            ours = last[name].unflatten(0, (len(starts), seq))[:, s]
            assert_equal(ours, made[accepted + s][name], exactly=exactly)
    ours, theirs = (readable(side, [start + tokens for start in starts]) for side in (speculating, serial))
    for name in ours:
        assert len(ours[name]) > 0 or max(starts) < 128
        assert_equal(ours[name], theirs[name], exactly=exactly)


def assert_equal(actual: Tensor, expected: Tensor, *, exactly: bool) -> None:
    assert expected.isfinite().all()
    if exactly:
        assert torch.equal(actual, expected)
    else:
        torch.testing.assert_close(actual.float(), expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("seq", "accepted"),
    [(4, 2), *(pytest.param(*counts, marks=pytest.mark.slow) for counts in COUNTS if counts != (4, 2))],
)
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_rejected_draft_leaves_nothing_to_the_kernels(kind: Kind, seq: int, accepted: int) -> None:
    """Starts of every remainder by 4, and before, at and after the end of a group of 128 wherever the step has it."""
    starts = (0, 1, 2, 3, 66, 121, 122, 123, 124, 125, 126, 127, 128, 255, 509, 510, 8190)
    check(KernelDecoder, kind, starts, seq=seq, accepted=accepted, exactly=True)


@pytest.mark.slow
@pytest.mark.parametrize(("seq", "accepted"), COUNTS)
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_rejected_draft_leaves_nothing_to_the_goldens(kind: Kind, seq: int, accepted: int) -> None:
    """Starts of every remainder by 128."""
    for first in (128, 192):
        check(GoldenDecoder, kind, range(first, first + 64), seq=seq, accepted=accepted, exactly=False)


def test_a_ring_of_one_group_loses_a_row_that_the_next_step_needs() -> None:
    """16 pages of 8 rows are 128: a rejected row at 128 lies on that of position 0, which the group's end at 127 reads
    after it."""

    class ShortRing(KernelDecoder):
        def metadata(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
            assert self.tables.block_counts is not None
            counts = self.tables.block_counts.clone()
            counts[:, [group.name for group in CacheGeometry().groups].index("hca_state")] = 16
            self.inputs["block_counts"] = counts
            self.tables = replace(self.tables, block_counts=counts)
            return super().metadata(*args, **kwargs)

    with pytest.raises(AssertionError):
        check(ShortRing, "hca", (126,), seq=4, accepted=1, exactly=True)
    check(ShortRing, "hca", (120,), seq=4, accepted=1, exactly=True)
