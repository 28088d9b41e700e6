"""The host builder is the oracle, over whatever a builder accepts."""

from __future__ import annotations

from hypothesis import given, settings

from decode_metadata.step_inputs import StepInputs
from decode_metadata.strategies import steps
from tests.decode_metadata.oracle import expected_step


@settings(max_examples=100, deadline=None)
@given(steps())
def test_host_builder_is_the_oracle(step: StepInputs) -> None:
    built = step.build()
    for name, expected in expected_step(step).items():
        assert getattr(built, name).tolist() == expected, name
