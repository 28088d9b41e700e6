"""The launches of one case on one device: each on a fresh fixture, and all of them with the same bits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.devices.base import Device, LaunchLog, LaunchRecord, Order
from harness.fixture import Fixture, same_bits
from harness.report import Failure
from harness.stage import Stage

MOST_VIOLATIONS = 8


@dataclass
class Launched:
    """What the launches did: the first one's outputs and traffic, what went wrong in any, and how long each took."""

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    traffic: list[LaunchRecord] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    fixture_seconds: float = 0.0


def launch_in_turn(
    stage: Stage, fixture: Fixture, *, device: Device, orders: Sequence[Order], extra: Mapping[str, Any] | None = None
) -> Launched:
    """Launch `stage` once for each of `orders`, up to the first with a failure. `extra` goes to the launch beside the
    fixture's arguments."""
    done = Launched()
    for repetition, order in enumerate(orders):
        if repetition:
            fixture.reset()
        log = LaunchLog()
        began = time.perf_counter()
        try:
            with device.active(order) as log:
                stage.launch(**fixture.arguments, **(extra or {}))
        except Exception as error:
            done.failures.append(Failure.raised("launch", stage.name, error))
            _read(log, stage, done)
            break
        _read(log, stage, done)
        done.seconds.append(time.perf_counter() - began)
        done.failures += fixture.check()
        actual = fixture.outputs()
        done.outputs = done.outputs or actual
        done.failures += [
            Failure("repeat", name, f"repetition {repetition} ({order}) gives other bits than the first")
            for name in actual
            if not same_bits(actual[name], done.outputs[name])
        ]
        if done.failures:
            break
    return done


def _read(log: LaunchLog, stage: Stage, done: Launched) -> None:
    done.traffic = done.traffic or log.launches
    done.warnings += [f"{found.kernel}: {found.text}" for found in log.violations if found.warning]
    wrong = dict.fromkeys((found.kernel, found.text) for found in log.violations if not found.warning)
    done.failures += [Failure("violation", kernel, text) for kernel, text in itertools.islice(wrong, MOST_VIOLATIONS)]
    if len(wrong) > MOST_VIOLATIONS:
        done.failures.append(Failure("violation", stage.name, f"and {len(wrong) - MOST_VIOLATIONS} more"))
