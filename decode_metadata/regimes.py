"""Start positions at which something turns over, beyond the canonical sets of `contexts`."""

from __future__ import annotations

from decode_metadata.checks import check_count

__all__ = ["position_regimes"]

# Page edges; the edges of top-k selections; the middle and the end of an 8k session, of a 16k one; powers of two past
# what bf16, fp16 and 16-bit integers hold; the last position of a model of a million.
_EDGES = (
    *range(126, 131), *range(254, 258), *range(510, 514), *range(8190, 8194), 8702, 16382, 65536, 131_071, 1_048_575,
)  # fmt: skip


def position_regimes(*, seq: int, max_position: int) -> tuple[int, ...]:
    """The starts, ascending and distinct, that leave room for `seq` tokens, the last legal one included."""
    check_count("seq", seq)
    check_count("max_position", max_position, low=seq)
    last = max_position - seq
    return tuple(sorted({*(start for start in _EDGES if start <= last), last}))
