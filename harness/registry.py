"""Which stages and models exist: whatever the entry-point group `touchstone.stages` names."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from harness.case import ModelConfig
from harness.stage import Stage

GROUP = "touchstone.stages"


class RegistryError(ValueError):
    """A stage, model or entry point that is unknown or unusable; the message names it and what there is instead."""


@dataclass(frozen=True)
class Registered:
    """A stage with the models that its module offers and the name of that module."""

    stage: Stage
    models: Mapping[str, ModelConfig]
    module: str

    def model(self, name: str) -> ModelConfig:
        """The model of this name. Raises RegistryError listing the stage's models."""
        if name not in self.models:
            raise RegistryError(f"stage {self.stage.name!r} has no {_unknown('model', name, self.models)}")
        return self.models[name]


@dataclass(frozen=True)
class Registry:
    """Every registered stage by name, in the order its module gives."""

    entries: Mapping[str, Registered]

    def stage(self, name: str) -> Registered:
        """The stage of this name. Raises RegistryError with the closest match and the list of stages."""
        if name not in self.entries:
            raise RegistryError(f"no {_unknown('stage', name, self.entries)}")
        return self.entries[name]

    @property
    def models(self) -> dict[str, ModelConfig]:
        """Every model that some stage runs on, by name."""
        return {name: model for entry in self.entries.values() for name, model in entry.models.items()}

    def check_model(self, name: str) -> None:
        """Raise RegistryError if no stage runs on a model of this name."""
        if name not in self.models:
            raise RegistryError(f"no {_unknown('model', name, self.models)}")


def load_registry() -> Registry:
    """Import every module of the group. Raises RegistryError naming the entry point that cannot be used."""
    return collect(point.value for point in sorted(entry_points(group=GROUP), key=lambda point: point.name))


def collect(modules: Iterable[str]) -> Registry:
    """The registry of these modules, each with `STAGES`, a tuple of Stage, and `MODELS`, name -> configuration."""
    entries: dict[str, Registered] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            raise RegistryError(f"{GROUP} module {name!r} fails to import: {type(error).__name__}: {error}") from error
        stages, models = getattr(module, "STAGES", None), getattr(module, "MODELS", None)
        if not isinstance(stages, tuple) or not all(isinstance(stage, Stage) for stage in stages):
            raise RegistryError(f"{GROUP} module {name!r} needs STAGES, a tuple of Stage, got {stages!r}")
        if not isinstance(models, Mapping) or not models:
            raise RegistryError(f"{GROUP} module {name!r} needs MODELS, name -> configuration, got {models!r}")
        for stage in stages:
            if stage.name in entries:
                other = entries[stage.name].module
                raise RegistryError(f"stage {stage.name!r} is registered by both {other!r} and {name!r}")
            entries[stage.name] = Registered(stage=stage, models=dict(models), module=name)
    return Registry(entries=entries)


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return f"{kind} {name!r}{hint} ({kind}s: {', '.join(known) or 'none'})"
