"""A case's ranks as the processes of a `torchrun` job: rank 0 judges, the others launch what it tells them to."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch.distributed as dist

from harness.case import Case
from harness.devices.base import Order
from harness.devices.registry import open_device
from harness.launches import Launched
from harness.ranks.groups import backend_of, join_by_environment, rank_device, subgroup
from harness.ranks.rank import launch_share
from harness.stage import Stage

_FAILED = 1


def under_torchrun() -> bool:
    """Whether this process is a rank of a job that `torchrun` started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


class TorchrunJob:
    """This process's place in the job. `device` is the device of each machine's first rank.

    A rank that fails ends its process with status 1, and torchrun ends the job. Raises ValueError for more ranks than
    the job has.
    """

    def __init__(self, device: str) -> None:
        self.device = open_device(rank_device(device, int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))))
        join_by_environment(self.device.torch_device)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # What the harness itself sends is on the CPU, whatever the launches' tensors are on.
        self._control = subgroup(range(self.size), backend="gloo")

    def check(self, case: Case) -> None:
        """Raise ValueError if the job has too few ranks for the case."""
        if case.ep > self.size:
            raise ValueError(f"ep {case.ep} needs as many ranks, and torchrun started {self.size}")

    def __call__(self, stage: Stage, case: Case, *, device: str, orders: Sequence[Order]) -> list[Launched]:
        """On rank 0: have the case's ranks launch, this one too, and return what each did."""
        self._tell((stage, case, tuple(orders)))
        return self._launch(stage, case, tuple(orders))[: case.ep]

    def follow(self) -> int:
        """On the other ranks: launch what rank 0 says until it is done, and return the status that it ends with."""
        while not isinstance(told := self._tell(None), int):
            self._launch(*told)
        dist.destroy_process_group()
        return told

    def end(self, status: int) -> int:
        """On rank 0: end the job with this status."""
        self._tell(status)
        dist.destroy_process_group()
        return status

    def _tell(self, what: object) -> Any:
        told = [what]
        dist.broadcast_object_list(told, src=0, group=self._control)
        return told[0]

    def _launch(self, stage: Stage, case: Case, orders: tuple[Order, ...]) -> list[Launched]:
        group = subgroup(range(case.ep), backend=backend_of(self.device.torch_device))
        done = Launched()
        if group is not None:
            done = launch_share(stage, case, self.rank, device=self.device, orders=orders, group=group)
            if done.failures:
                _give_up(done)
        gathered: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(replace(done), gathered, dst=0, group=self._control)
        return gathered or []


def _give_up(done: Launched) -> NoReturn:
    for failure in done.failures:
        print(f"touchstone run: {failure}\n{failure.details}", file=sys.stderr)
    sys.stderr.flush()
    # The others wait in a collective that this rank will not join, so an orderly end would wait for them.
    os._exit(_FAILED)
