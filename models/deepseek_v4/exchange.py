"""What the ranks of a layout hand each other: counts, then rows. On one rank, `group` None, nothing moves.

Every rank of the group calls each function, whether it has rows or not. Tensors are of the dtypes that gloo, hccl and
nccl all carry: int8, int32, int64, bf16, fp32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def exchange_counts(sent: Tensor, received: Tensor, *, group: ProcessGroup | None) -> Tensor:
    """What every rank sends to this one, [ranks, n]: row r is rank r's `sent[this rank]`.

    It is in `received`, of `sent`'s shape, or on one rank `sent` itself.
    """
    if group is None:
        return sent
    dist.all_to_all_single(received, sent, group=group)
    return received


def exchange_rows(
    sent: Tensor,
    received: Tensor,
    *,
    sent_rows: Sequence[int],
    received_rows: Sequence[int],
    group: ProcessGroup | None,
) -> Tensor:
    """The rows that the ranks send to this one, one rank's after another's, in rank order.

    `sent` begins with `sent_rows[r]` rows for each rank r; `received_rows[r]` come from it. They are the first rows of
    `received`, which is not touched beyond, or on one rank those of `sent` itself.
    """
    if group is None:
        return sent
    taken, given = sum(received_rows), sum(sent_rows)
    dist.all_to_all_single(received[:taken], sent[:given], list(received_rows), list(sent_rows), group=group)
    return received
