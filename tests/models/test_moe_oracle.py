"""The exact goldens of the mixture of experts are transformers', with both routers, in fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from golden.specs import ScalarSpec, Spec
from harness.case import Case
from harness.stage import Golden
from models.deepseek_v4 import gate, gate_hash, moe
from models.deepseek_v4.config import TINY
from models.deepseek_v4.moe_fixtures import (
    bias_spec,
    expert_weights,
    hash_specs,
    router_specs,
    shared_expert_weights,
)
from tests.models.fixture import case_at
from tests.models.transformers_moe import sparse_moe
from tests.models.transformers_reference import rms_norm

TOKENS = 24


def weights(case: Case, *routing: Spec) -> dict[str, Any]:
    specs = (*router_specs(case), *expert_weights(case), *shared_expert_weights(case), *routing)
    t = {spec.name: spec.value if isinstance(spec, ScalarSpec) else spec.create() for spec in specs}
    t |= {"swiglu_limit": TINY.swiglu_limit, "experts": case.routed_experts}
    t["x"] = 3.0 * torch.randn(TOKENS, TINY.hidden, generator=torch.Generator().manual_seed(0))
    for name, value in t.items():
        if isinstance(value, torch.Tensor) and value.dtype != torch.int32:
            assert value.ne(0).float().mean() > 0.9, name
    return t


@torch.no_grad()
@pytest.mark.parametrize("router", ["score", "hash"])
def test_the_block(router: str) -> None:
    case = case_at(TINY, 5)
    golden: Golden = gate.golden
    if router == "hash":
        golden = gate_hash.golden
        t = weights(case, *hash_specs(case))
        t["input_ids"] = torch.randint(0, TINY.vocab, (TOKENS,), generator=torch.Generator().manual_seed(1))
    else:
        t = weights(case, bias_spec(case))
    normed = rms_norm(t["ffn_norm_w"], eps=TINY.rms_norm_eps)(t["x"])
    reference = sparse_moe(t, TINY)
    choice = golden(t, precision="exact")
    ids = (t["input_ids"][None],) if router == "hash" else ()
    _, expected_weights, expected_ids = reference.get_submodule("gate")(normed[None], *ids)
    order, expected_order = choice["expert_ids"].long().argsort(-1), expected_ids.argsort(-1)
    assert torch.equal(choice["expert_ids"].long().gather(1, order), expected_ids.gather(1, expected_order))
    torch.testing.assert_close(
        choice["expert_weights"].gather(1, order), expected_weights.gather(1, expected_order), rtol=1e-4, atol=1e-5
    )
    expected = reference(normed[None], *ids)[0]
    torch.testing.assert_close(moe.ffn_golden(t, golden, precision="exact"), expected, rtol=1e-4, atol=1e-5)
    assert len(torch.unique(expected_ids)) == case.routed_experts


@torch.no_grad()
def test_the_clamps_act() -> None:
    """Without them the block gives something else: what the equality above says of them is not nothing."""
    case = case_at(TINY, 5)
    t = weights(case, bias_spec(case))
    clamped, free = (
        moe.ffn_golden({**t, "swiglu_limit": limit}, gate.golden, precision="exact")
        for limit in (TINY.swiglu_limit, 1e9)
    )
    assert (clamped - free).abs().max() > 0.01
