"""The mixture of experts, from the residual stream to the residual stream.

x_hc -> hc_pre -> gate -> expert_shared -> dispatch -> expert_routed -> combine -> hc_post -> y_hc

x_hc, y_hc [tokens, lanes, hidden] fp32; the stages' own modules have the formulas, shapes and rounding points. The
norm before the experts is part of the gate. Source: DeepseekV4DecoderLayer in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from golden.arithmetic import rms_norm
from harness.stage import Golden, Precision
from models.deepseek_v4 import combine, dispatch, expert_routed, expert_shared, gate, hc_post, hc_pre


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    return routed_block(t, gate.golden, precision=precision)


def routed_block(t: Mapping[str, Any], router: Golden, *, precision: Precision) -> dict[str, Tensor]:
    """The block's outputs, with `router` to choose the experts."""
    before = hc_pre.golden(t, precision=precision)
    x_out = experts({**t, "x": before["x"]}, router, precision=precision)
    return {"y_hc": hc_post.golden({**t, **before, "x_out": x_out}, precision=precision)["y_hc"]}


def experts(t: Mapping[str, Any], router: Golden, *, precision: Precision) -> Tensor:
    """ffn_out of the rows `x`: gate, shared and routed experts, and their sum."""
    t = {**t, **router(t, precision=precision)}
    if precision == "exact":
        t["x_norm_i8"] = rms_norm(t["x"].float(), t["ffn_norm_w"].float(), eps=t["rms_norm_eps"])
        t["x_norm_i8_scale"] = torch.ones(len(t["x"]), 1)
    t |= expert_shared.golden(t, precision=precision)
    sent = dispatch.golden(t | {"ranks": 1}, precision=precision)
    received = {
        "recv_x": sent["send_x"],
        "recv_scale": sent["send_scale"],
        "recv_weight": sent["send_weight"],
        "expert_offsets": sent["send_offsets"],
    }
    y = expert_routed.golden({**t, **received}, precision=precision)["recv_y"]
    count = int(sent["send_offsets"][-1])
    routed_y = torch.zeros_like(y)
    routed_y[sent["send_route"][:count].long()] = y[:count]
    t["routed_y"] = routed_y.view(*t["expert_ids"].shape, -1)
    return combine.golden(t, precision=precision)["ffn_out"]
