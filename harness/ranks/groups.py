"""The process group between the ranks of a case."""

from __future__ import annotations

import datetime
import os
import re
import socket
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

BACKENDS = {"cpu": "gloo", "npu": "hccl", "cuda": "nccl"}
"""torch.distributed's backend by the kind of device that the ranks' tensors are on."""

WIRE_DTYPES = (torch.int8, torch.int32, torch.int64, torch.bfloat16, torch.float32)
"""What all three backends carry."""

# Whoever starts the ranks watches over them; a backend's own limit would blame a rank that is merely slow.
_NO_LIMIT = datetime.timedelta(days=1)


def rank_device(name: str, rank: int) -> str:
    """The device of `rank` where rank 0 is on device `name`: `npu:0` gives `npu:3` for rank 3, `sim` stays `sim`."""
    if not re.fullmatch(r"(npu|cuda)(:\d+)?", name):
        return name
    kind, _, first = name.partition(":")
    return f"{kind}:{int(first or 0) + rank}"


def backend_of(device: torch.device) -> str:
    """The backend that carries tensors on `device`. Raises ValueError for a kind that has none."""
    if device.type not in BACKENDS:
        raise ValueError(f"device must be one of {', '.join(BACKENDS)} to communicate, got {device.type!r}")
    return BACKENDS[device.type]


def join_by_file(path: Path, *, rank: int, ranks: int, device: torch.device) -> dist.ProcessGroup:
    """Join the `ranks` processes of this machine that all give the same `path`, a file that none has made yet."""
    _stay_on_this_machine()
    store = FileStore(str(path), ranks)
    dist.init_process_group(backend_of(device), store=store, rank=rank, world_size=ranks, timeout=_NO_LIMIT)
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def join_by_environment(device: torch.device) -> dist.ProcessGroup:
    """Join the processes that `torchrun` started, as RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say."""
    dist.init_process_group(backend_of(device), init_method="env://", timeout=_NO_LIMIT)
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def subgroup(members: range, *, backend: str | None = None) -> dist.ProcessGroup | None:
    """A group of some ranks, None on the others. Every rank of the job calls it, members or not."""
    made = dist.new_group(list(members), backend=backend, timeout=_NO_LIMIT)
    return made if dist.get_rank() in members else None


def _stay_on_this_machine() -> None:
    # gloo otherwise looks up the host's name, which a machine with no network can't.
    if any(name == "lo" for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
