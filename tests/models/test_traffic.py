"""The bytes that the simulator counts for a launch are those that the stage must move."""

from __future__ import annotations

from harness.devices.base import LaunchRecord
from harness.devices.registry import open_device
from harness.golden_cache import GoldenCache
from harness.run import run_case
from models.deepseek_v4.config import TINY
from models.deepseek_v4.kv_write import STAGE
from tests.models.fixture import case_at


def test_a_row_that_goes_nowhere_moves_nothing() -> None:
    report = run_case(
        STAGE, case_at(TINY, 0, 0, 0, 0), device=open_device("sim"), golden_cache=GoldenCache(folder=None)
    )
    # Three of the four tokens are active. A row is 128 bf16 lanes; a slot is an int64, read for all four.
    assert TINY.head_dim == 128
    assert report.traffic == (
        LaunchRecord(
            kernel="kv_write_kernel",
            grid=(4, 1, 1),
            bytes_read={"kv_ptr": 3 * 256, "slot_ptr": 4 * 8},
            bytes_written={"cache_ptr": 3 * 256},
        ),
    )
