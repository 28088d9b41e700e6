"""The attention blocks are transformers' decoder layer up to its mixture of experts, for every token of a sequence.

Two requests, from an empty cache on, through paged pools with permuted pages. In a sparse layer index_topk is 64, of up
to 300 compressed rows: from token 259 on a token attends to some.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from models.deepseek_v4.config import TINY
from tests.models.block_oracle import BLOCKS, decoded
from tests.models.decoding import GoldenDecoder
from tests.models.fixture import case_at
from tests.models.transformers_reference import Kind

BATCH = 2
TOKENS = 1200
SHORT = 280


def decode_by_golden(kind: Kind, x_hc: Tensor, *, seq: int) -> Tensor:
    tokens = x_hc.shape[1]
    decoder = GoldenDecoder(BLOCKS[kind], case_at(TINY, *[tokens - seq] * BATCH, seq=seq), seq=seq)
    made = [decoder.step([start] * BATCH, x_hc[:, start : start + seq])["y_hc"] for start in range(0, tokens, seq)]
    return torch.cat([y_hc.view(BATCH, seq, *y_hc.shape[1:]) for y_hc in made], 1)


def check(kind: Kind, *, tokens: int, seq: int) -> None:
    expected = decoded(kind, batch=BATCH, tokens=tokens)
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


@pytest.mark.slow
def test_selection_acts() -> None:
    """Without a choice, tokens from 259 on come out otherwise: what the equality says of the indexer is not nothing."""
    expected, unchosen = (
        decoded("csa", batch=BATCH, tokens=SHORT, config=config) for config in (TINY, replace(TINY, index_topk=SHORT))
    )
    assert torch.equal(expected.x_hc, unchosen.x_hc)
    difference = (unchosen.y_hc - expected.y_hc).abs().amax((0, 2, 3))
    assert difference[:259].max() < 1e-5
    assert difference[259:].min() > 1e-3
