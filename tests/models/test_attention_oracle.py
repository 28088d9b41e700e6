"""The attention blocks are transformers' decoder layer up to its mixture of experts, for every token of a sequence.

Two requests, from an empty cache on, through paged pools with permuted pages. In a sparse layer index_topk is 64, of up
to 300 compressed rows: from token 259 on a token attends to some.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from harness.stage import Stage
from models.deepseek_v4 import attention_csa, attention_hca, attention_swa
from models.deepseek_v4.config import TINY
from tests.models import transformers_reference as reference
from tests.models.decoding import GoldenDecoder
from tests.models.fixture import case_at, golden_inputs
from tests.models.transformers_reference import Kind

BLOCKS: dict[Kind, Stage] = {"swa": attention_swa.STAGE, "hca": attention_hca.STAGE, "csa": attention_csa.STAGE}
BATCH = 2
TOKENS = 1200
SHORT = 280

# How near a token's last index score and the next must be for the two sides to choose otherwise.
NEAR = 1e-5


@dataclass(frozen=True, eq=False)
class Decoded:
    """transformers' outputs [batch, tokens, lanes, hidden] of `x_hc`, and where its indexer's choice is a near tie,
    bool [batch, tokens]."""

    x_hc: Tensor
    y_hc: Tensor
    tied: Tensor


@functools.cache
def decoded(kind: Kind, tokens: int) -> Decoded:
    t = golden_inputs(BLOCKS[kind], case_at(TINY, 0))
    x_hc = torch.randn(BATCH, tokens, TINY.hc_lanes, TINY.hidden, generator=torch.Generator().manual_seed(0))
    block = reference.Block(t, TINY, kind)
    y_hc = block.decode(x_hc)
    tied = torch.zeros(BATCH, tokens, dtype=torch.bool)
    for p, scores in enumerate(block.scores):
        if scores.shape[1] > TINY.index_topk:
            best = scores.sort(descending=True).values
            last, following = best[:, TINY.index_topk - 1], best[:, TINY.index_topk]
            tied[:, p] = last - following <= NEAR * last.abs()
    return Decoded(x_hc, y_hc, tied)


def decode_by_golden(kind: Kind, x_hc: Tensor, *, seq: int) -> Tensor:
    tokens = x_hc.shape[1]
    decoder = GoldenDecoder(BLOCKS[kind], case_at(TINY, *[tokens - seq] * BATCH, seq=seq))
    made = [
        decoder.step([start] * BATCH, x_hc=x_hc[:, start : start + seq].flatten(0, 1))["y_hc"]
        for start in range(0, tokens, seq)
    ]
    return torch.cat([y_hc.view(BATCH, seq, *y_hc.shape[1:]) for y_hc in made], 1)


def check(kind: Kind, *, tokens: int, seq: int) -> None:
    expected = decoded(kind, tokens)
    actual = decode_by_golden(kind, expected.x_hc, seq=seq)
    assert expected.tied.float().mean() < 0.01
    clear = ~expected.tied
    torch.testing.assert_close(actual[clear], expected.y_hc[clear], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", BLOCKS)
def test_the_first_tokens_decode_as_in_transformers(kind: Kind) -> None:
    check(kind, tokens=SHORT, seq=4)


@pytest.mark.slow
@pytest.mark.parametrize("seq", [1, 2, 4])
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_sequence_decodes_as_in_transformers(kind: Kind, seq: int) -> None:
    check(kind, tokens=TOKENS, seq=seq)


def test_ties_are_few_and_selection_acts() -> None:
    """Without a choice, tokens from 259 on come out otherwise: what the equality says of the indexer is not nothing."""
    expected = decoded("csa", SHORT)
    all_rows = reference.Block(golden_inputs(BLOCKS["csa"], case_at(TINY, 0)), TINY, "csa")
    all_rows.attention.compressor.indexer.index_topk = TOKENS
    difference = (all_rows.decode(expected.x_hc) - expected.y_hc).abs().amax((0, 2, 3))
    assert difference[:259].max() < 1e-5
    assert difference[259:].min() > 1e-3
