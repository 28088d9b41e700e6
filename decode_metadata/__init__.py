"""Metadata of decode steps: start positions, block tables, slot mappings, windows, and whole steps of them."""

from __future__ import annotations

from decode_metadata.block_tables import block_table, ring_pages
from decode_metadata.cache_tables import CacheTables, cache_tables
from decode_metadata.contexts import start_positions
from decode_metadata.geometry import CacheGeometry, CacheGroup
from decode_metadata.positions import kv_seq_lens, position_ids
from decode_metadata.regimes import position_regimes
from decode_metadata.slots import check_slot_mapping, compressed_slot_mapping, sliding_window, slot_mapping
from decode_metadata.step import DecodeMetadata, build_step, lower_step
from decode_metadata.step_inputs import StepInputs
from decode_metadata.visibility import mask_uncommitted, visible_rows

__all__ = [
    "CacheGeometry",
    "CacheGroup",
    "CacheTables",
    "DecodeMetadata",
    "StepInputs",
    "block_table",
    "build_step",
    "cache_tables",
    "check_slot_mapping",
    "compressed_slot_mapping",
    "kv_seq_lens",
    "lower_step",
    "mask_uncommitted",
    "position_ids",
    "position_regimes",
    "ring_pages",
    "sliding_window",
    "slot_mapping",
    "start_positions",
    "visible_rows",
]
