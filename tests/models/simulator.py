"""Launches on the simulator, outside a run."""

from __future__ import annotations

from torch import Tensor, device

from harness.case import Case
from harness.devices.registry import open_device
from harness.fixture import Fixture
from harness.stage import Stage


def launch_on_sim(stage: Stage, case: Case, **replaced: Tensor) -> dict[str, Tensor]:
    """The outputs of one launch on the case's fixture, with the inputs named in `replaced` set to other values."""
    fixture = Fixture(stage.specs(case), device=device("cpu"))
    for name, value in replaced.items():
        argument = fixture.arguments[name]
        assert isinstance(argument, Tensor)
        argument.copy_(value)
    with open_device("sim").active() as log:
        stage.launch(**fixture.arguments, **stage.alone)
    assert log.violations == []
    return fixture.outputs()
