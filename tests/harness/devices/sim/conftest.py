from __future__ import annotations

import pytest
from mlir import ir

from harness.devices.sim.device import SimDevice


@pytest.fixture(scope="session")
def sim() -> SimDevice:
    return SimDevice()


@pytest.fixture
def context():
    """Where tests make and rewrite IR."""
    with ir.Context() as context, ir.Location.unknown():
        context.allow_unregistered_dialects = True
        yield context
