"""Every stage passes on the simulator: the whole run, with its poison, guards, repetition and comparators."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from harness.case import Case
from harness.devices.registry import open_device
from harness.expand import expand_cases
from harness.golden_cache import GoldenCache
from harness.run import run_case
from harness.stage import Stage
from models.deepseek_v4.config import FLASH, PRO, TINY, DeepseekV4Config
from models.deepseek_v4.stages import STAGES
from tests.models.fixture import case_at

# TINY runs every start of every context; one request and ragged tiles of 16 rows are where a mask may be missing. Ways
# to spread tokens over experts need one layout.
LAYOUTS = [(1, 1), (3, 3), (4, 2), (16, 4)]
ROUTED = (4, 2)

stages = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)

OF_ALL_EXPERTS = ("experts", "moe", "moe_hash")
"""Their goldens multiply by some hundred megabytes of weights at FLASH's widths; expert_routed then has rows for one
expert."""


def check(
    stage: Stage,
    config: DeepseekV4Config,
    contexts: tuple[str, ...],
    batch: int,
    seq: int,
    *,
    experts: int | None = None,
    routing: str | None = None,
) -> None:
    """Run those of `contexts` that the stage has."""
    chosen = [context for context in contexts if context in stage.cases.contexts]
    assert chosen
    run_all(
        stage,
        expand_cases(stage, model=config, contexts=chosen, batch=batch, seq=seq, experts=experts, routing=routing),
    )


def run_all(stage: Stage, cases: Iterable[Case]) -> None:
    device, no_cache = open_device("sim"), GoldenCache(folder=None)
    for case in cases:
        report = run_case(stage, case, device=device, golden_cache=no_cache)
        assert report.all_failures == (), case.id
        assert report.passed
        assert report.warnings == ()
        assert report.repetitions == 2


@stages
@pytest.mark.parametrize(("batch", "seq"), LAYOUTS, ids=lambda count: str(count))
def test_tiny(stage: Stage, batch: int, seq: int) -> None:
    routing = None if (batch, seq) == ROUTED else "uniform"
    check(stage, TINY, ("cold", "boundary", "8k"), batch, seq, routing=routing)


@pytest.mark.parametrize(
    "stage",
    [pytest.param(s, marks=pytest.mark.slow if s.name in OF_ALL_EXPERTS else (), id=s.name) for s in STAGES],
)
def test_flash_at_8k(stage: Stage) -> None:
    routing = "one_expert" if stage.name == "expert_routed" else "uniform"
    check(stage, FLASH, ("8k",), 4, 2, experts=8, routing=routing)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage", [s for s in STAGES if "boundary" in s.cases.contexts and not s.composed], ids=lambda stage: stage.name
)
def test_flash_cold_and_boundary(stage: Stage) -> None:
    """Composed stages meet their boundaries on TINY."""
    check(stage, FLASH, ("cold", "boundary"), 4, 1)


@pytest.mark.slow
@stages
def test_pro_at_8k(stage: Stage) -> None:
    check(stage, PRO, ("8k",), 2, 2, experts=8, routing="uniform")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swa_core", "attention_hca"])
def test_the_last_legal_position(name: str) -> None:
    stage = next(stage for stage in STAGES if stage.name == name)
    case = case_at(TINY, TINY.max_position - 2, TINY.max_position - 2, seq=2)
    run_all(stage, [case])
