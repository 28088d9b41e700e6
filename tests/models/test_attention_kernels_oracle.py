"""The blocks' kernels against transformers in fp32: what int8 and bf16 cost, token by token of one sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from models.deepseek_v4.config import TINY, DeepseekV4Config
from tests.models.block_oracle import BLOCKS, decoded
from tests.models.decoding import KernelDecoder
from tests.models.fixture import case_at
from tests.models.transformers_reference import Kind

TOKENS = 640
SEQ = 4
MOST = 0.03
"""Relative L2 of a token's x_out."""


def decode_by_kernels(kind: Kind, config: DeepseekV4Config, x_hc: Tensor) -> tuple[Tensor, Tensor | None]:
    """x_out [tokens, hidden], and the chosen rows [tokens, index_topk] where there is a choice."""
    decoder = KernelDecoder(BLOCKS[kind], case_at(config, TOKENS - SEQ, seq=SEQ), seq=SEQ)
    steps = [decoder.step([start], x_hc[:, start : start + SEQ]) for start in range(0, TOKENS, SEQ)]
    x_out = torch.cat([step["x_out"] for step in steps]).float()
    return x_out, torch.cat([step["cmp_indices"] for step in steps]) if kind == "csa" else None


def relative_l2(actual: Tensor, expected: Tensor) -> Tensor:
    return torch.linalg.vector_norm(actual - expected, dim=-1) / torch.linalg.vector_norm(expected, dim=-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "config"),
    [("swa", TINY), ("hca", TINY), ("csa", replace(TINY, index_topk=256))],
    ids=["swa", "hca", "csa-all-rows"],
)
def test_every_token_is_near_without_selection(kind: Kind, config: DeepseekV4Config) -> None:
    expected = decoded(kind, batch=1, tokens=TOKENS, config=config)
    x_out, chosen = decode_by_kernels(kind, config, expected.x_hc)
    assert chosen is None or int((chosen[-1] >= 0).sum()) == TOKENS // 4
    error = relative_l2(x_out, expected.x_out[0])
    assert error.max() <= MOST


@pytest.mark.slow
def test_most_tokens_are_near_with_selection() -> None:
    """Of the tokens that have more rows than they may choose. One that attends to another row is further off."""
    expected = decoded("csa", batch=1, tokens=TOKENS)
    x_out, chosen = decode_by_kernels("csa", TINY, expected.x_hc)
    assert chosen is not None
    first = 4 * TINY.index_topk + 3
    error = relative_l2(x_out, expected.x_out[0])[first:]
    assert error.median() <= MOST
    common, wanted = 0, 0
    for ours, theirs in zip(chosen[first:].tolist(), expected.chosen[first:], strict=True):
        rows = set(theirs[0].tolist())
        assert len(rows) == len(set(ours)) == TINY.index_topk
        common += len(rows & set(ours))
        wanted += len(rows)
    assert common / wanted >= 0.98
