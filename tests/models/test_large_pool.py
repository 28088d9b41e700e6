"""A pool past 2^31 elements: an int32 offset would wrap. Only the pages that are touched take memory."""

from __future__ import annotations

import torch

from harness.devices.registry import open_device
from models.deepseek_v4 import kv_write, sparse_attention_swa

WIDTH = 128
ROW = 2**31 // WIDTH + 5


def test_a_row_past_two_billion_elements_is_written_and_read() -> None:
    """A token that sees that row alone, with a sink that weighs as much, gives half the row."""
    pool = torch.empty(ROW // 128 + 1, 128, WIDTH, dtype=torch.bfloat16)
    kv = torch.arange(WIDTH).bfloat16()[None]
    attn_out = torch.full((1, 16, WIDTH), torch.nan, dtype=torch.bfloat16)
    no_turn = torch.tensor([[1.0] * 32]).bfloat16()
    with open_device("sim").active() as log:
        kv_write.launch(kv=kv, ori_slot_mapping=torch.tensor([ROW]), kv_cache=pool)
        sparse_attention_swa.launch(
            q=torch.zeros(1, 16, WIDTH).bfloat16(),
            kv_cache=pool,
            swa_indices=torch.tensor([[ROW] + [-1] * 127], dtype=torch.int32),
            swa_lens=torch.tensor([1], dtype=torch.int32),
            attn_sink=torch.zeros(16),
            position_ids=torch.tensor([0], dtype=torch.int32),
            rope_cos=no_turn,
            rope_sin=torch.zeros_like(no_turn),
            softmax_scale=1.0,
            attn_out=attn_out,
        )
    assert log.violations == []
    assert torch.equal(pool.view(-1, WIDTH)[ROW], kv[0])
    assert torch.equal(attn_out[0], (kv / 2).expand(16, -1))
