"""Combine: the shared expert's row and those that came back from the routed ones, summed in the order of the routes.

    ffn_out[t] = ((shared_y[t] + routed_y[t, 0]) + routed_y[t, 1]) + ...

over the routes that dispatch sent: those whose expert_ids is an expert and whose weight is not 0; the others' rows of
routed_y are not read. shared_y [tokens, hidden] fp32; routed_y [tokens, experts_per_token, hidden] bf16, by route;
expert_ids int32 and expert_weights fp32 [tokens, experts_per_token]; ffn_out [tokens, hidden] bf16, the only rounding.
Source: DeepseekV4SparseMoeBlock in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from harness.stage import Precision


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    ids = t["expert_ids"]
    sent = (ids >= 0) & (ids < t["experts"]) & (t["expert_weights"] != 0)
    total = t["shared_y"].clone()
    for k in range(ids.shape[1]):
        total += torch.where(sent[:, k, None], t["routed_y"][:, k].float(), 0.0)
    return {"ffn_out": total if precision == "exact" else total.bfloat16()}
