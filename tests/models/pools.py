"""Which cache group each pool of a block belongs to."""

from __future__ import annotations

from collections.abc import Iterable

from decode_metadata import CacheGeometry, CacheGroup

POOLS = {
    "kv_cache": "ori",
    "hca_cmp_kv": "hca_cmp",
    "csa_cmp_kv": "csa_cmp",
    "idx_kv": "idx",
    "idx_kv_scale": "idx",
    "hca_state": "hca_state",
    "csa_state": "csa_state",
    "csa_inner_state": "csa_inner_state",
}
GROUPS = {group.name: group for group in CacheGeometry().groups}


def pools_of(names: Iterable[str]) -> dict[str, CacheGroup]:
    """The pools among `names`, each with its group."""
    names = tuple(names)
    return {name: GROUPS[group] for name, group in POOLS.items() if name in names}
