from __future__ import annotations

import pytest

from harness.devices.sim.device import SimDevice


@pytest.fixture(scope="session")
def sim() -> SimDevice:
    return SimDevice()
