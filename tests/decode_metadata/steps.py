"""Steps that several tests take: the worked trace of decode-spec's appendix A, and a step as plain lists."""

from __future__ import annotations

import torch

from decode_metadata import CacheGeometry, DecodeMetadata

SLOTS = tuple(group.slots for group in CacheGeometry().groups)


def int32(values: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


TRACE_TABLES = {
    "ori_block_table": int32([[10, 11]]),
    "hca_cmp_block_table": int32([[7, 8]]),
    "csa_cmp_block_table": int32([[5, 6]]),
    "idx_block_table": int32([[3, 2]]),
    "hca_state_block_table": int32([[*range(40, 57)]]),
    "csa_state_block_table": int32([[20, 21, 22, 23]]),
    "csa_inner_state_block_table": int32([[33, 31, 30, 32]]),
}
# ori, hca_cmp, csa_cmp, idx, hca_state, csa_state, csa_inner_state
TRACE_COUNTS = int32([[2, 2, 2, 2, 17, 4, 4]])


def fields(step: DecodeMetadata) -> dict[str, list[int]]:
    """Every tensor that the builder made, as lists."""
    names = (*SLOTS, "position_ids", "kv_seq_lens", "swa_indices", "swa_lens", "csa_visible", "hca_visible")
    return {name: getattr(step, name).tolist() for name in names}
