"""The Triton backend: triton-ascend's own frontend and adapter, then our lowering to native code."""

from __future__ import annotations

import functools
import threading
from types import ModuleType
from typing import Any

from triton.backends.ascend.compiler import AscendAttrsDescriptor, NPUOptions, make_ttir, min_dot_size
from triton.backends.compiler import BaseBackend, GPUTarget

from harness.cpu import usable_cores
from harness.devices.sim.adapter import to_linalg
from harness.devices.sim.frontend import FRONTEND
from harness.devices.sim.keys import version_key
from harness.devices.sim.linking import load_routines
from harness.devices.sim.once import compiled_once
from harness.devices.sim.pool import CompilerPool

BACKEND = "sim"
MOST_COMPILERS = 2

_ROUTINES = threading.Lock()
"""A routine is loaded once, however many kernels that call it are compiled at a time."""


@functools.cache
def compiler() -> CompilerPool:
    """The compiler processes of this process."""
    return CompilerPool(min(MOST_COMPILERS, usable_cores()))


class SimBackend(BaseBackend):  # type: ignore[misc]
    """Compiles for `sim`. Options are triton-ascend's own."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return bool(target.backend == BACKEND)

    def __init__(self, target: GPUTarget) -> None:
        super().__init__(target)
        self.binary_ext = "obj"

    def hash(self) -> str:
        return f"sim-{self.target.arch}-{version_key()}"

    def parse_options(self, options: dict[str, Any]) -> NPUOptions:
        return NPUOptions(**{name: options[name] for name in NPUOptions.__dataclass_fields__ if name in options})

    def pack_metadata(self, metadata: Any) -> Any:
        return metadata

    def get_codegen_implementation(self) -> dict[str, Any]:
        return {"min_dot_size": min_dot_size(self.target)}

    def load_dialects(self, context: Any) -> None:
        pass

    def get_attrs_descriptor(self, parameters: Any, arguments: Any) -> AscendAttrsDescriptor:
        return AscendAttrsDescriptor(parameters, arguments)

    def get_module_map(self) -> dict[str, ModuleType]:
        return {}

    def add_stages(self, stages: dict[str, Any], options: NPUOptions) -> None:
        # Triton asks for the stages when it has found no object.
        compiler().start()
        stages["ttir"] = lambda module, metadata: _simplified(module, metadata, options)
        stages["ttadapter"] = to_linalg
        stages["obj"] = self._native

    def _native(self, linalg_ir: str, metadata: dict[str, Any]) -> bytes:
        def made() -> tuple[dict[str, Any], bytes]:
            # Routines that no kernel has called yet are compiled here meanwhile.
            return compiler().compile(linalg_ir, self.target.arch, lowered=_load_routines)

        facts, native = compiled_once(metadata["hash"], made)
        metadata["shared"] = 0
        metadata["name"] = facts["kernel"]
        metadata["sim"] = facts
        return native


def _simplified(module: Any, metadata: dict[str, Any], options: NPUOptions) -> Any:
    with FRONTEND:
        return make_ttir(module, metadata, options)


def _load_routines(facts: dict[str, Any]) -> None:
    with _ROUTINES:
        load_routines(facts["routines"])
