"""Stages and models are found by name, and a wrong name or module gets one line that helps."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from harness.registry import RegistryError, collect, load_registry
from tests.harness.fakes import MODELS, STAGE, STAGES

FAKES = "tests.harness.fakes"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(name: str, **contents: Any) -> str:
        made = ModuleType(name)
        vars(made).update(contents)
        monkeypatch.setitem(sys.modules, name, made)
        return name

    return make


def test_a_stage_comes_with_its_modules_models() -> None:
    entry = collect([FAKES]).stage("toy_stage")
    assert entry.stage is STAGE
    assert entry.model("toy") is MODELS["toy"]
    assert entry.module == FAKES


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda known: known.stage("toy_stag"), "no stage 'toy_stag', did you mean 'toy_stage'? (stages: toy_stage)"),
        (lambda known: known.stage("zzz"), "no stage 'zzz' (stages: toy_stage)"),
        (lambda known: known.check_model("toi"), "no model 'toi', did you mean 'toy'? (models: toy)"),
        (lambda known: known.stage("toy_stage").model("b"), "stage 'toy_stage' has no model 'b' (models: toy)"),
    ],
)
def test_an_unknown_name_lists_what_there_is(ask: Any, message: str) -> None:
    with pytest.raises(RegistryError) as caught:
        ask(collect([FAKES]))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"STAGES": [STAGE], "MODELS": MODELS}, "needs STAGES, a tuple of Stage"),
        ({"MODELS": MODELS}, "needs STAGES, a tuple of Stage, got None"),
        ({"STAGES": STAGES}, "needs MODELS, name -> configuration, got None"),
        ({"STAGES": STAGES, "MODELS": {}}, "needs MODELS, name -> configuration, got {}"),
    ],
)
def test_a_module_without_the_contract_is_named(module: Any, contents: dict[str, Any], message: str) -> None:
    with pytest.raises(RegistryError, match="module 'toy_module' " + message):
        collect([module("toy_module", **contents)])


def test_one_name_from_two_modules_is_refused(module: Any) -> None:
    other = module("toy_module", STAGES=STAGES, MODELS=MODELS)
    with pytest.raises(RegistryError, match=f"stage 'toy_stage' is registered by both '{FAKES}' and 'toy_module'"):
        collect([FAKES, other])


def test_a_module_that_does_not_import_is_named() -> None:
    with pytest.raises(RegistryError, match="module 'no_such_module' fails to import: ModuleNotFoundError"):
        collect(["no_such_module"])


def test_the_installed_stages_are_found() -> None:
    assert "rms_norm" in load_registry().entries
