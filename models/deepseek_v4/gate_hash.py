"""Hash routing, of a model's first layers: a table gives each token id its experts, the gate only their weights.

    expert_ids[t] = tid2eid[clamp(input_ids[t], 0, vocab - 1)]

and all else as `gate` has it, without a bias. input_ids [tokens] int64; tid2eid [vocab, experts_per_token] int32, whose
rows hold no expert twice. Ids are clamped in the kernel because a row whose id is bound late carries a placeholder.
Source: DeepseekV4HashRouter in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from harness.stage import Precision
from models.deepseek_v4 import gate


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    table = t["tid2eid"]
    ids = table[t["input_ids"].clamp(0, len(table) - 1)].long()
    return gate.routed(t, gate.router_scores(t), ids, precision=precision)
