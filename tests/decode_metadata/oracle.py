"""A decode step's metadata in plain Python integers, one token at a time: slow, and as the rules are stated.

It shares no code with the builders, and asks of its argument only numbers: `starts`, `seq`, `tables`, `counts`,
`commit_tokens` and the sizes in `geometry`.
"""

from __future__ import annotations

from typing import Any

INT32_MAX = 2147483647
ORI, HCA_CMP, CSA_CMP, IDX, HCA_STATE, CSA_STATE, CSA_INNER_STATE = range(7)


def expected_step(step: Any) -> dict[str, list[Any]]:
    """Every tensor of the step by name, token-major by request, as lists."""
    sizes = step.geometry
    out: dict[str, list[Any]] = {name: [] for name in NAMES}
    for r, start in enumerate(step.starts):
        commit = step.commit_tokens
        if isinstance(commit, tuple):
            commit = commit[r]
        out["kv_seq_lens"].append(kv_seq_len(start, step.seq, commit))
        for s in range(step.seq):
            p = start + s
            if p < 0 or p > INT32_MAX:
                p = -1
            out["position_ids"].append(p)
            out["ori_slot_mapping"].append(ori_slot(step, r, p))
            length = min(p + 1, sizes.window)
            window = []
            for k in range(sizes.window):
                row = ori_slot(step, r, p - length + 1 + k) if k < length else -1
                window.append(row if row <= INT32_MAX else -1)
            out["swa_lens"].append(length)
            out["swa_indices"].append(window)
            unverified = commit is not None and (s >= commit or commit > step.seq)
            for name, group, ratio in (
                ("hca_cmp_slot_mapping", HCA_CMP, sizes.hca_ratio),
                ("csa_cmp_slot_mapping", CSA_CMP, sizes.csa_ratio),
                ("csa_idx_slot_mapping", IDX, sizes.csa_ratio),
            ):
                out[name].append(-1 if unverified else compressed_slot(step, r, p, group, ratio))
            for name, group, page in (
                ("hca_state_slot_mapping", HCA_STATE, sizes.hca_state_page_tokens),
                ("csa_state_slot_mapping", CSA_STATE, sizes.csa_state_page_tokens),
                ("csa_inner_state_slot_mapping", CSA_INNER_STATE, sizes.csa_state_page_tokens),
            ):
                out[name].append(state_slot(step, r, p, group, page))
            for name, ratio in (("hca_visible", sizes.hca_ratio), ("csa_visible", sizes.csa_ratio)):
                out[name].append(max(0, min((p + 1) // ratio, out["kv_seq_lens"][r] // ratio)))
    return out


NAMES = (
    "position_ids", "kv_seq_lens", "ori_slot_mapping", "swa_indices", "swa_lens", "hca_cmp_slot_mapping",
    "csa_cmp_slot_mapping", "csa_idx_slot_mapping", "hca_state_slot_mapping", "csa_state_slot_mapping",
    "csa_inner_state_slot_mapping", "hca_visible", "csa_visible",
)  # fmt: skip


def kv_seq_len(start: int, seq: int, commit: int | None) -> int:
    if commit is None:
        commit = seq
    if not 0 <= start <= INT32_MAX or not 0 <= commit <= seq or start + commit > INT32_MAX:
        return -1
    return start + commit


def ori_slot(step: Any, r: int, p: int) -> int:
    """Absolute columns, whatever the count."""
    page = step.geometry.page_tokens
    table = step.tables[ORI][r]
    if p < 0 or p // page >= len(table) or table[p // page] < 0:
        return -1
    return table[p // page] * page + p % page


def column_of(step: Any, r: int, group: int, column: int) -> int:
    """Modulo the request's count, where there are counts; -1 for a count that is none."""
    if step.counts is None:
        return column
    count = step.counts[r][group]
    return column % count if count > 0 else -1


def compressed_slot(step: Any, r: int, p: int, group: int, ratio: int) -> int:
    """The token that completes a group of `ratio` writes its row; a page is a page of source tokens."""
    if p < 0 or (p + 1) % ratio != 0:
        return -1
    source_page = step.geometry.page_tokens
    column = column_of(step, r, group, p // source_page)
    table = step.tables[group][r]
    if column < 0 or column >= len(table) or table[column] < 0:
        return -1
    return table[column] * (source_page // ratio) + (p % source_page) // ratio


def state_slot(step: Any, r: int, p: int, group: int, page: int) -> int:
    """Every token writes its row of compressor state, through the ring."""
    if p < 0:
        return -1
    column = column_of(step, r, group, p // page)
    table = step.tables[group][r]
    if column < 0 or column >= len(table) or table[column] < 0:
        return -1
    return table[column] * page + p % page
