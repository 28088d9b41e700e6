"""What one rank's process does: its share of the case's tensors, the launches, and a report to the parent."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from harness.case import Case
from harness.devices.base import Device, Order
from harness.devices.registry import open_device
from harness.fixture import Fixture
from harness.launches import Launched, launch_in_turn
from harness.ranks.groups import join_by_file, rank_device
from harness.report import Failure
from harness.stage import Stage


@dataclass(frozen=True)
class Job:
    """What every rank is told. `folder` takes the ranks' meeting point, outputs and stacks."""

    stage: Stage
    case: Case
    device: str
    orders: tuple[Order, ...]
    threads: int
    folder: Path
    environment: Mapping[str, str]

    def outputs_file(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.pt"

    def stack_file(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.stack"


def launch_share(
    stage: Stage, case: Case, rank: int, *, device: Device, orders: tuple[Order, ...], group: dist.ProcessGroup | None
) -> Launched:
    """Run `rank`'s part of the launches on this process, which is that rank of `group`. Failures name the rank."""
    began = time.perf_counter()
    try:
        fixture = Fixture(stage.specs(case.on_rank(rank)), device=device.torch_device)
    except Exception as error:
        return Launched(failures=[Failure.raised("specs", stage.name, error, rank=rank)])
    fixture_seconds = time.perf_counter() - began
    done = launch_in_turn(stage, fixture, device=device, orders=orders, extra={"group": group})
    done.fixture_seconds = fixture_seconds
    done.failures = [replace(failure, rank=rank) for failure in done.failures]
    return done


def run_rank(job: Job, rank: int, parent: Connection) -> None:
    """The main function of a rank's process. It ends when the parent says so, or with the parent."""
    released = _live_with(parent)
    os.environ.clear()
    os.environ.update(job.environment)
    with job.stack_file(rank).open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
        torch.set_num_threads(job.threads)
        done = _launched(job, rank)
        torch.save(done.outputs, job.outputs_file(rank))
        parent.send(replace(done, outputs={}))
        # Leaving now would break the connections of the ranks that are not done, and hide whose fault it was.
        released.wait()
    if dist.is_initialized():
        dist.destroy_process_group()


def _launched(job: Job, rank: int) -> Launched:
    try:
        device = open_device(rank_device(job.device, rank))
        group = join_by_file(job.folder / "meeting", rank=rank, ranks=job.case.ep, device=device.torch_device)
    except Exception as error:
        return Launched(failures=[Failure.raised("rank", job.device, error, rank=rank)])
    return launch_share(job.stage, job.case, rank, device=device, orders=job.orders, group=group)


def _live_with(parent: Connection) -> threading.Event:
    """Make this process a group of its own, which dies when the parent does; the event is the parent's word to end."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    released = threading.Event()

    def wait() -> None:
        try:
            parent.recv()
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)
        released.set()

    threading.Thread(target=wait, daemon=True).start()
    return released
