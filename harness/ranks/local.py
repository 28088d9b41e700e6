"""A case's ranks as processes of this machine: started together, watched, and ended whatever happens."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch

from harness.case import Case
from harness.cpu import usable_cores
from harness.devices.base import Order
from harness.launches import Launched
from harness.ranks import watch
from harness.ranks.rank import Job, run_rank
from harness.report import Failure
from harness.stage import Stage

_POLL_SECONDS = 1.0
# CPU time that shows that a rank works: threads that wait still wake up now and then.
_WORK_SECONDS = 0.05
# When one rank is gone, others fail on their connection to it: time for the cause to show beside the consequences.
_GRACE_SECONDS = 0.5
_LEAVE_SECONDS = 5.0


@dataclass(frozen=True)
class Patience:
    """How long ranks may take: `idle_s` with none of them using its processor, `total_s` in all."""

    idle_s: float = 20.0
    total_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("idle_s", "total_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


def launch_on_ranks(
    stage: Stage, case: Case, *, device: str, orders: Sequence[Order], patience: Patience | None = None
) -> list[Launched]:
    """Launch `stage` on `case.ep` processes of this machine and return what each did, in rank order.

    `device` is rank 0's. If any rank fails, is killed or does not get on, all are ended, and only the failures of the
    ranks that caused it are returned. No process is left when this returns or raises.
    """
    with tempfile.TemporaryDirectory(prefix="touchstone-ranks-") as folder:
        job = Job(stage, case, device, tuple(orders), max(1, usable_cores() // case.ep), Path(folder), dict(os.environ))
        try:
            pickle.dumps(job)
        except Exception as error:
            return [Launched(failures=[Failure.raised("rank", stage.name, error)])]
        team = _Team(job, patience or Patience())
        try:
            team.start()
            team.collect()
        finally:
            team.end()
        if team.failures:
            return [Launched(failures=team.failures)]
        for rank, done in team.done.items():
            done.outputs = torch.load(job.outputs_file(rank), weights_only=True)
        return [team.done[rank] for rank in range(case.ep)]


@dataclass
class _Team:
    job: Job
    patience: Patience
    processes: list[ForkServerProcess] = field(default_factory=list)
    pipes: list[Connection] = field(default_factory=list)
    done: dict[int, Launched] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def start(self) -> None:
        # The ranks are forked from a process that has imported everything and run nothing.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([run_rank.__module__, self.job.stage.launch.__module__, *_preloaded(self.job)])
        for rank in range(self.job.case.ep):
            mine, theirs = context.Pipe()
            process = context.Process(target=run_rank, args=(self.job, rank, theirs), name=f"rank {rank}")
            self.pipes.append(mine)
            self.processes.append(process)
            process.start()
            theirs.close()

    def collect(self) -> None:
        """Wait until every rank is done, or one is not going to be."""
        started = active = time.monotonic()
        used = 0.0
        while len(self.done) < len(self.processes) and not self.failures:
            if self._receive(_POLL_SECONDS):
                active = time.monotonic()
                continue
            now, using = time.monotonic(), watch.cpu_seconds([process.pid or 0 for process in self.processes])
            if using - used > _WORK_SECONDS:
                active, used = now, using
            if now - active > self.patience.idle_s:
                self._blame(f"no progress for {self.patience.idle_s:g} s")
            elif now - started > self.patience.total_s:
                self._blame(f"not done after {self.patience.total_s:g} s")
        if self.failures:
            end = time.monotonic() + _GRACE_SECONDS
            while (left := end - time.monotonic()) > 0:
                self._receive(left)
            self.failures = _causes(self.failures)

    def end(self) -> None:
        for pipe in self.pipes:
            if not self.failures and len(self.done) == len(self.processes):
                try:
                    pipe.send("end")
                except OSError:
                    continue
        for process in self.processes:
            if process.pid is None:
                continue
            if not self.failures and len(self.done) == len(self.processes):
                process.join(_LEAVE_SECONDS)
            watch.end_group(process.pid)
            process.kill()
            process.join()
            process.close()
        for pipe in self.pipes:
            pipe.close()

    def _receive(self, seconds: float) -> bool:
        """Take what the ranks have to say within some seconds; False if that is nothing."""
        waiting = [rank for rank in range(len(self.processes)) if rank not in self.done]
        ready = wait(
            [self.pipes[rank] for rank in waiting] + [self.processes[rank].sentinel for rank in waiting], seconds
        )
        for rank in waiting:
            if self.pipes[rank] not in ready and self.processes[rank].sentinel not in ready:
                continue
            try:
                self.done[rank] = self.pipes[rank].recv()
            except (EOFError, OSError):
                self.processes[rank].join()
                self.done[rank] = Launched(failures=[self._death(rank)])
            self.failures += self.done[rank].failures
        return bool(ready)

    def _death(self, rank: int) -> Failure:
        code = self.processes[rank].exitcode
        how = f"killed by {_signal_name(-code)}" if code is not None and code < 0 else f"ended with status {code}"
        return Failure("rank", self.job.stage.name, how, rank=rank)

    def _blame(self, what: str) -> None:
        """Fail the ranks that do not get on: those that do not wait in a collective, or all if each does."""
        late = [rank for rank in range(len(self.processes)) if rank not in self.done]
        stacks = {rank: watch.ask_stack(self.processes[rank].pid or 0, self.job.stack_file(rank)) for rank in late}
        blocked = [rank for rank in late if watch.in_collective(stacks[rank])]
        guilty = [rank for rank in late if rank not in blocked] or blocked
        for rank in guilty:
            waiting = ", ".join(str(other) for other in blocked if other != rank)
            suffix = f"; ranks that wait for others: {waiting}" if waiting else ""
            reason = f"{what}, at {watch.where(stacks[rank])}{suffix}"
            self.failures.append(Failure("rank", self.job.stage.name, reason, details=stacks[rank], rank=rank))


def _preloaded(job: Job) -> list[str]:
    return ["harness.devices.sim.driver"] if job.device.startswith("sim") else []


def _causes(failures: list[Failure]) -> list[Failure]:
    """The failures that are no consequence of another rank's."""
    own = [failure for failure in failures if not watch.in_collective(failure.details)]
    return own or failures


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
