"""Bytes that the kernels move at FLASH and 8k, against the least that the case needs."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import pytest

from harness.ascend.cache import ContentCache
from harness.ascend.recording import Recording, launched_kernels, record_stage
from harness.ascend.survey import traffic_case
from harness.stage import Stage
from models.deepseek_v4 import (
    hc_head,
    hc_post,
    hc_pre,
    output_proj,
    qkv_proj_rope,
    sparse_attention_csa,
    sparse_attention_hca,
    sparse_attention_swa,
)
from models.deepseek_v4.config import FLASH, TINY

BF16_BYTES = 2
HEAD_TILE = 16
"""The largest that fits: 32 heads overflow on A2 and A3 and fill the A5's unified buffer to 93 %."""

MATMULS = ("project_kernel", "query_kernel", "group_sum_kernel")
MATMULS_OF = {"qkv_proj_rope": 3, "output_proj": 2}


def recorded(stage: Stage) -> Recording:
    case = traffic_case(stage, FLASH)
    assert case.id == "flash-b4-s2-8k"
    recording = record_stage(stage, (), traffic_case=case, cache=ContentCache(None))
    assert recording.failure == ""
    return recording


@pytest.mark.slow
@pytest.mark.parametrize("stage", [qkv_proj_rope.STAGE, output_proj.STAGE], ids=lambda stage: stage.name)
def test_matmuls_move_at_most_a_quarter_more_than_they_must(stage: Stage) -> None:
    matmuls = [launch for launch in recorded(stage).traffic if launch.kernel in MATMULS]
    assert len(matmuls) == MATMULS_OF[stage.name]
    for launch in matmuls:
        least = launch.least_bytes({})
        # A weight is all that is large: the least is at least its size.
        assert least > launch.arguments["w_ptr"].size_bytes
        assert launch.moved_bytes <= 1.25 * least, (launch.kernel, launch.moved_bytes / least)


# Compressed rows that the tokens of 8k see or choose in all: the four requests start at 8190, 8191, 8192 and 127.
HCA_ROWS = 63 + 5 * 64 + 2 * 1
CSA_ROWS = 6 * FLASH.index_topk + 2 * 32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "compressed_rows"),
    [(sparse_attention_swa.STAGE, 0), (sparse_attention_hca.STAGE, HCA_ROWS), (sparse_attention_csa.STAGE, CSA_ROWS)],
    ids=lambda value: value.name if isinstance(value, Stage) else "",
)
def test_attention_moves_what_its_head_tile_must(stage: Stage, compressed_rows: int) -> None:
    traffic = recorded(stage).traffic
    tokens = 8
    q_bytes = FLASH.heads * FLASH.head_dim * BF16_BYTES
    kv_bytes = (tokens * FLASH.window + compressed_rows) * FLASH.head_dim * BF16_BYTES
    assert q_bytes == 65536
    least = tokens * 2 * q_bytes + ceil(FLASH.heads / HEAD_TILE) * kv_bytes
    moved = sum(launch.moved_bytes for launch in traffic)
    assert least <= moved <= 1.1 * least, moved / least


@pytest.mark.slow
@pytest.mark.parametrize("stage", [hc_pre.STAGE, hc_post.STAGE, hc_head.STAGE], ids=lambda stage: stage.name)
def test_hyper_connections_read_their_weight_once(stage: Stage) -> None:
    for launch in recorded(stage).traffic:
        least = launch.least_bytes({})
        assert launch.moved_bytes <= 1.05 * least, (launch.kernel, launch.moved_bytes / least)


def test_a_recording_runs_nothing_and_leaves_tritons_hooks() -> None:
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    before = (driver.active, JITFunction.cache_hook, JITFunction.run)
    case = traffic_case(output_proj.STAGE, TINY)
    first, again = (launched_kernels(output_proj.STAGE, case) for _ in range(2))
    assert [kernel.kernel for kernel in first] == ["project_kernel", "quantize_rows_kernel", "group_sum_kernel"]
    assert [kernel.key for kernel in first] == [kernel.key for kernel in again]
    assert first[0].arguments == ("x_ptr", "w_ptr", "y_ptr", "tokens", "outputs", "x_stride", "y_stride")
    assert first[0].signature["x_ptr"] == "*bf16"
    assert first[0].constants["K"] == TINY.group_input
    assert (driver.active, JITFunction.cache_hook, JITFunction.run) == before


def test_traffic_is_kept_and_equal(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path)
    stage, case = sparse_attention_swa.STAGE, traffic_case(sparse_attention_swa.STAGE, TINY)
    first = record_stage(stage, (), traffic_case=case, cache=cache)
    again = record_stage(stage, (), traffic_case=case, cache=cache)
    assert first.traffic == again.traffic
    assert first.traffic[0].read["cache_ptr"] == case.tokens * TINY.window * TINY.head_dim * BF16_BYTES
