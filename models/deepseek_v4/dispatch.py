"""Dispatch: a rank's rows packed by the expert they go to, and so by the rank that has it.

Route t * experts_per_token + k takes row x_norm_i8[t] to expert expert_ids[t, k]; a route whose id is not an expert
(-1) or whose weight is 0 is skipped. Routes go in the order of their expert, those of one expert in their own order:

    send_counts[r, e]  = routes to expert e of rank r;  send_offsets[e] = routes to the experts before e, of all ranks
    row i of send_x, send_scale, send_weight, send_route = the i-th route's x_norm_i8[t], x_norm_i8_scale[t],
                                                           expert_weights[t, k] and own number

expert_ids int32 and expert_weights fp32 [tokens, experts_per_token]; x_norm_i8 [tokens, hidden] int8 and its scale
[tokens, 1] fp32. send_counts [ranks, experts / ranks] and send_offsets [experts + 1] int32; send_x [routes, hidden]
int8; send_scale and send_weight [routes] fp32; send_route [routes] int32, with routes = tokens * experts_per_token.
Rows from send_offsets[experts] on are never written. A copy, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from golden.poison import poison_
from harness.stage import Precision


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    ids, weights, experts = t["expert_ids"].flatten().long(), t["expert_weights"].flatten(), t["experts"]
    sent = ((ids >= 0) & (ids < experts) & (weights != 0)).nonzero().flatten()
    sent = sent[torch.sort(ids[sent], stable=True).indices]
    token = sent // t["expert_ids"].shape[1]
    counts = torch.bincount(ids[sent], minlength=experts).int()
    return {
        "send_counts": counts.view(t["ranks"], -1),
        "send_offsets": torch.cat((counts.new_zeros(1), counts.cumsum(0, dtype=torch.int32))),
        "send_x": _first_rows(t["x_norm_i8"][token], len(ids)),
        "send_scale": _first_rows(t["x_norm_i8_scale"].flatten()[token], len(ids)),
        "send_weight": _first_rows(weights[sent], len(ids)),
        "send_route": _first_rows(sent.int(), len(ids)),
    }


def _first_rows(rows: Tensor, count: int) -> Tensor:
    """`rows` and after them poison, `count` in all."""
    packed = poison_(rows.new_empty(count, *rows.shape[1:]))
    packed[: len(rows)] = rows
    return packed
