"""Metadata of decode steps: start positions, block tables, slot mappings, windows."""

from __future__ import annotations

from decode_metadata.block_tables import block_table, ring_pages
from decode_metadata.contexts import start_positions
from decode_metadata.positions import kv_seq_lens, position_ids
from decode_metadata.slots import check_slot_mapping, sliding_window, slot_mapping

__all__ = [
    "block_table",
    "check_slot_mapping",
    "kv_seq_lens",
    "position_ids",
    "ring_pages",
    "sliding_window",
    "slot_mapping",
    "start_positions",
]
