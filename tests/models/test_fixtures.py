"""What a case's specs hold: realistic, distinct, and independent of the layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_metadata import check_slot_mapping
from golden.specs import TensorSpec, check_specs
from harness.stage import Stage
from models.deepseek_v4 import embed, kv_write, output_proj, qkv_proj_rope, sparse_attention_swa, swa_core
from models.deepseek_v4.caches import step_metadata
from models.deepseek_v4.config import FLASH, TINY, DeepseekV4Config
from models.deepseek_v4.fixtures import config_of
from models.deepseek_v4.stages import MODELS, STAGES
from tests.models.fixture import case_at, golden_inputs

STARTS = st.lists(st.integers(0, 700) | st.integers(8180, 8200), min_size=1, max_size=5)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
@pytest.mark.parametrize("config", MODELS.values(), ids=lambda config: config.name)
def test_specs_are_well_formed(stage: Stage, config: DeepseekV4Config) -> None:
    specs = stage.specs(case_at(config, 8190, 0, seq=2))
    check_specs(specs)
    assert {spec.name for spec in specs if isinstance(spec, TensorSpec) and spec.role in ("out", "inout")} == set(
        stage.compare
    )


def test_sizes_are_the_models() -> None:
    shapes = {
        spec.name: spec.shape
        for spec in swa_core.specs(case_at(FLASH, 8190, 8191, 8192, 127, seq=2))
        if isinstance(spec, TensorSpec)
    }
    assert shapes["wq_b"] == (64 * 512, 1024)
    assert shapes["wo_a"] == (8, 1024, 4096)
    assert shapes["wo_b"] == (4096, 8 * 1024)
    # Rings of 2 pages, and of one and two more for the second and third request; the last has two; a scratch page.
    assert shapes["kv_cache"] == (2 + 3 + 4 + 2 + 1, 128, 512)
    assert shapes["rope_cos"] == (65 * 128, 32)
    assert shapes["swa_indices"] == (8, 128)


@settings(max_examples=30, deadline=None)
@given(starts=STARTS, seq=st.integers(1, 4))
def test_every_visible_row_holds_its_request_and_position(starts: list[int], seq: int) -> None:
    """The rows a token's window names are the rows of its own request at the positions before it, oldest first."""
    case = case_at(TINY, *starts, seq=seq)
    metadata = step_metadata(case)
    slots = metadata.step.ori_slot_mapping
    check_slot_mapping(slots, pool_rows=metadata.pool_pages["ori"] * TINY.page_tokens)
    t = golden_inputs(sparse_attention_swa.STAGE, case)
    flat = t["kv_cache"].view(-1, TINY.head_dim)
    for token in range(case.tokens):
        length = int(t["swa_lens"][token])
        assert length == min(int(t["position_ids"][token]) + 1, TINY.window)
        seen = flat[t["swa_indices"][token, :length].long()]
        assert torch.isfinite(seen).all()
        assert len(torch.unique(seen, dim=0)) == length
        assert torch.equal(seen[-1], flat[slots[token]])


def test_a_cache_row_does_not_depend_on_the_layout() -> None:
    """Request 0 at position 300 sees the same rows alone, among others (other pages), and in a longer step."""
    alone = golden_inputs(sparse_attention_swa.STAGE, case_at(TINY, 300))
    among = golden_inputs(sparse_attention_swa.STAGE, case_at(TINY, 299, 7, 8190, seq=2))

    def window(t: dict[str, Any], token: int) -> torch.Tensor:
        rows: torch.Tensor = t["kv_cache"].view(-1, TINY.head_dim)[t["swa_indices"][token].long()]
        return rows

    assert not torch.equal(alone["swa_indices"][0], among["swa_indices"][1])
    assert torch.equal(window(alone, 0), window(among, 1))
    assert torch.equal(alone["q"][0], among["q"][1])


def test_rows_no_request_wrote_are_nan() -> None:
    history = golden_inputs(kv_write.STAGE, case_at(TINY, 5, 0, seq=2))
    written = torch.isfinite(history["kv_cache"]).all(-1)
    assert int(written.sum()) == 5
    assert torch.isnan(history["kv_cache"][~written]).all()


def test_the_last_row_of_kv_write_is_inactive() -> None:
    assert golden_inputs(kv_write.STAGE, case_at(TINY, 5, 0, seq=2))["ori_slot_mapping"].tolist()[-1] == -1
    assert golden_inputs(kv_write.STAGE, case_at(TINY, 5))["ori_slot_mapping"].tolist() == [5]


def test_ids_repeat_and_leave_the_vocabulary() -> None:
    ids = golden_inputs(embed.STAGE, case_at(TINY, 0, 0, 0, 0, seq=2))["input_ids"].tolist()
    assert {0, TINY.vocab - 1, -1, TINY.vocab} <= set(ids)
    assert len(set(ids)) < len(ids)


def test_the_embedding_table_has_no_row_twice() -> None:
    table = golden_inputs(embed.STAGE, case_at(TINY, 0))["embed_w"]
    assert len(torch.unique(table, dim=0)) == TINY.vocab


@pytest.mark.parametrize("config", [TINY, FLASH], ids=lambda config: config.name)
def test_scales_are_realistic(config: DeepseekV4Config) -> None:
    t = golden_inputs(qkv_proj_rope.STAGE, case_at(config, 0)) | golden_inputs(output_proj.STAGE, case_at(config, 0))
    for name in ("wq_a", "wkv", "wo_a"):
        assert t[name].float().std().item() == pytest.approx(t[name].shape[-1] ** -0.5, rel=0.05)
    for name in ("wq_b", "wo_b"):
        real = t[name].float() * t[f"{name}_scale"][:, None]
        assert real.std().item() == pytest.approx(t[name].shape[-1] ** -0.5, rel=0.1)
    for name in ("q_norm_w", "kv_norm_w"):
        assert t[name].float().mean().item() == pytest.approx(1, abs=0.05)
        assert t[name].float().std().item() > 0.05


def test_sinks_do_not_hide() -> None:
    sinks = golden_inputs(sparse_attention_swa.STAGE, case_at(TINY, 0))["attn_sink"]
    assert sinks.min() >= 2
    assert sinks.max() <= 6
    assert len(torch.unique(sinks)) == TINY.heads


def test_seeds_change_everything() -> None:
    one, other = (golden_inputs(swa_core.STAGE, case_at(TINY, 300, 5, seed=seed)) for seed in (0, 1))
    for name in ("x", "wq_a", "wq_b", "wq_b_scale", "attn_norm_w", "attn_sink", "wo_b"):
        assert not torch.equal(one[name], other[name]), name


@dataclass(frozen=True)
class OtherModel:
    name: str = "other"
    max_position: int = 128


def test_another_model_is_refused() -> None:
    with pytest.raises(TypeError, match="model must be a DeepseekV4Config, got OtherModel"):
        config_of(replace(case_at(TINY, 0), model=OtherModel()))
