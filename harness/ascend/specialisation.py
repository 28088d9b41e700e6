"""A kernel as one launch compiles it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.ascend.module_ir import short_path


@dataclass(frozen=True, eq=False)
class Specialisation:
    """A `@triton.jit` function with the types and constants of one launch.

    `signature` maps run-time arguments to Triton's type names, `constants` the others to their values; `attributes`
    is Triton's description of divisible arguments; `options` what the launch gave the compiler.
    """

    fn: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    attributes: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kernel(self) -> str:
        return str(self.fn.__name__)

    @property
    def where(self) -> str:
        """The kernel's file and line."""
        return f"{short_path(str(Path(self.fn.fn.__code__.co_filename)))}:{self.fn.fn.__code__.co_firstlineno}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the compiled kernel's arguments, in order."""
        return tuple(name for name in self.signature if name not in self.constants)

    @property
    def key(self) -> str:
        """Equal for what compiles to the same code: source, types, constants, divisibility, options."""
        attributes = None if self.attributes is None else self.attributes.hash()
        described = json.dumps(
            [dict(self.signature), {name: str(value) for name, value in self.constants.items()}, dict(self.options)]
        )
        return f"{self.fn.cache_key}-{attributes}-{described}"

    def source(self) -> Any:
        """Triton's own description of it."""
        from triton.compiler import ASTSource

        return ASTSource(
            fn=self.fn, signature=dict(self.signature), constants=dict(self.constants), attrs=self.attributes
        )
