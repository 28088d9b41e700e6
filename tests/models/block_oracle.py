"""What transformers makes of a random sequence, by kind of attention."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.stage import Stage
from models.deepseek_v4 import attention_csa, attention_hca, attention_swa
from models.deepseek_v4.config import TINY, DeepseekV4Config
from tests.models.fixture import case_at, golden_inputs
from tests.models.transformers_reference import Block, Kind

BLOCKS: dict[Kind, Stage] = {"swa": attention_swa.STAGE, "hca": attention_hca.STAGE, "csa": attention_csa.STAGE}

# How near a token's last index score and the next must be for two sides to choose otherwise.
NEAR = 1e-5


@dataclass(frozen=True, eq=False)
class Decoded:
    """transformers' x_out [batch, tokens, hidden] and y_hc [batch, tokens, lanes, hidden] of `x_hc`.

    `chosen` has what its indexer chose for each token, [batch, at most index_topk]; `tied`, bool [batch, tokens], is
    where that was a near tie.
    """

    x_hc: Tensor
    x_out: Tensor
    y_hc: Tensor
    chosen: tuple[Tensor, ...]
    tied: Tensor


@functools.cache
def decoded(kind: Kind, *, batch: int, tokens: int, config: DeepseekV4Config = TINY) -> Decoded:
    """With the weights of the block's fixture, dequantised."""
    t = golden_inputs(BLOCKS[kind], case_at(config, 0))
    x_hc = torch.randn(batch, tokens, config.hc_lanes, config.hidden, generator=torch.Generator().manual_seed(0))
    block = Block(t, config, kind)
    x_out, y_hc = block.decode(x_hc)
    tied = torch.zeros(batch, tokens, dtype=torch.bool)
    for p, scores in enumerate(block.scores):
        if scores.shape[1] > config.index_topk:
            best = scores.sort(descending=True).values
            last, following = best[:, config.index_topk - 1], best[:, config.index_topk]
            tied[:, p] = last - following <= NEAR * last.abs()
    return Decoded(x_hc, x_out, y_hc, tuple(block.chosen), tied)
