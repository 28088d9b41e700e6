"""One kernel through triton-ascend's adapter and the Ascend compiler, to a record."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.ascend.bisheng import BEFORE_PLACING, PRINT_UB, Outcome, compile_flags, printed_ub_bytes, run_compiler
from harness.ascend.cache import ContentCache, content_key, source_digest
from harness.ascend.chips import Chip, find_chips
from harness.ascend.diagnosis import diagnose, overflows, position
from harness.ascend.linalg import Lowered, lower_kernel
from harness.ascend.module_facts import read_demand, read_module
from harness.ascend.record import Buffering, Diagnosis, KernelRecord, ModuleFacts
from harness.ascend.specialisation import Specialisation
from harness.ascend.toolchain import Toolchain, find_toolchain
from harness.ascend.triton_ir import TritonFacts
from harness.golden_cache import cache_folder

TIMEOUT_S = 180.0
"""For one compilation; `tl.topk` of 512 takes 26 s, the longest that was met."""

COMPILERS = 2
"""Compilers that run at a time: each takes one core and up to a gigabyte of memory."""

ONE_TRY = "--enable-tuning-mode"
"""Without it the compiler tries again, up to five times, even where only the closed binary compiler is missing."""


def compile_cache() -> ContentCache:
    """The cache that the command line uses."""
    return ContentCache(cache_folder() / "ascend")


def compile_kernel(
    fn: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    soc: str,
    *,
    options: Mapping[str, Any] | None = None,
    timeout_s: float = TIMEOUT_S,
    cache: ContentCache | None = None,
) -> KernelRecord:
    """What the Ascend compiler says of `fn`, a `@triton.jit` function, on one chip.

    `signature` maps each run-time argument to its Triton type (`*bf16` a pointer to bf16, `i32` a scalar),
    `constexprs` the others to their values; `soc` is `a2`, `a3`, `a5` or a full SoC name. Nothing is cached without a
    `cache`. Raises AscendMissingError without the extra `ascend`, ValueError for another soc or an argument that is
    neither in `signature` nor in `constexprs`; a kernel that does not compile is a record with errors.
    """
    chips = find_chips(soc)
    if len(chips) != 1:
        raise ValueError(f"soc must name one chip, got {soc!r}")
    names = set(fn.arg_names)
    given = {*signature, *constexprs}
    if missing := sorted(names - given):
        raise ValueError(f"argument {missing[0]!r} of {fn.__name__} is neither in signature nor in constexprs")
    if unknown := sorted(given - names):
        raise ValueError(f"{fn.__name__} has no argument {unknown[0]!r} ({', '.join(fn.arg_names)})")
    ordered = {name: signature[name] for name in fn.arg_names if name in signature}
    kernel = Specialisation(fn=fn, signature=ordered, constants=dict(constexprs), options=options or {})
    compiler = Compiler(find_toolchain(), cache or ContentCache(None), timeout_s)
    return compiler.compile(kernel, chips[0])


@dataclass(frozen=True)
class Compiler:
    """Compiles kernels with one toolchain, one cache and one limit of time."""

    toolchain: Toolchain
    cache: ContentCache
    timeout_s: float = TIMEOUT_S
    version: str = field(default_factory=lambda: source_digest(Path(__file__).parent.glob("*.py")))

    def compile_all(self, work: Sequence[tuple[Specialisation, Chip]]) -> list[KernelRecord]:
        """The records of all pairs, in order, compiled several at a time."""
        with ThreadPoolExecutor(COMPILERS) as pool:
            return list(pool.map(lambda pair: self.compile(*pair), work))

    def compile(self, kernel: Specialisation, chip: Chip) -> KernelRecord:
        """The record of one kernel on one chip. Whatever the frontend, the adapter or the compiler says is in it."""
        began = time.perf_counter()
        blank = KernelRecord(
            kernel=kernel.kernel, chip=chip.name, where=kernel.where,
            constants={name: _plain(value) for name, value in kernel.constants.items()},
        )  # fmt: skip
        try:
            lowered = self.lower(kernel, chip)
        except Exception as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            return replace(blank, errors=(Diagnosis(reason, position(str(error)) or kernel.where),))
        flags = compile_flags(chip, _options(kernel, chip))
        binary = self.toolchain.binary_compiler(chip)
        key = content_key(
            lowered.linalg_ir, *flags, self.toolchain.version, self.version, str(binary), str(Path.cwd()),
            str(self.timeout_s),
        )  # fmt: skip
        kept = self.cache.get(key)
        if kept is not None:
            return replace(
                KernelRecord.from_json(kept), warnings=lowered.triton.hazards, constants=blank.constants, cached=True
            )
        record = replace(self._compiled(blank, lowered, chip, flags, binary=binary), warnings=lowered.triton.hazards)
        record = replace(record, seconds=time.perf_counter() - began)
        self.cache.put(key, record.to_json())
        return record

    def lower(self, kernel: Specialisation, chip: Chip) -> Lowered:
        """The kernel's IR in the chip's flavour, from the cache where it is there."""
        key = content_key(kernel.key, chip.flavour, self.toolchain.version, self.version, "lowered")
        kept = self.cache.get(key)
        if kept is not None:
            return Lowered(triton=TritonFacts.from_json(kept["triton"]), linalg_ir=kept["linalg_ir"])
        lowered = lower_kernel(kernel.source(), chip, options=kernel.options)
        self.cache.put(key, {"triton": lowered.triton.to_json(), "linalg_ir": lowered.linalg_ir})
        return lowered

    def _compiled(
        self, blank: KernelRecord, lowered: Lowered, chip: Chip, flags: tuple[str, ...], *, binary: str | None
    ) -> KernelRecord:
        printing = () if chip.name != "a5" else (PRINT_UB,)

        def run(*more: str) -> Outcome:
            return run_compiler(
                lowered.linalg_ir, chip, toolchain=self.toolchain, flags=(*flags, *printing, *more),
                timeout_s=self.timeout_s,
            )  # fmt: skip

        outcome = run() if binary else run(ONE_TRY)
        errors = diagnose(outcome, timeout_s=self.timeout_s)
        if not binary and outcome.module is None and outcome.status == 1:
            # Only now its own further tries: without double buffering the kernel may fit, and on A5 a single try does
            # not say what overflowed.
            outcome = run()
            errors = diagnose(outcome, timeout_s=self.timeout_s)
        if errors or outcome.module is None:
            demanded = read_demand(run(ONE_TRY, BEFORE_PLACING).output, chip) if overflows(errors) else ()
            return replace(blank, errors=errors, demanded=demanded)
        try:
            facts = read_module(outcome.module, chip)
        except ValueError as error:
            return replace(blank, errors=(Diagnosis(str(error)[:300]),))
        printed, used = printed_ub_bytes(outcome.output), sum(m.used_bytes for m in facts.memory if m.space == "ub")
        if printed is not None and printed != used:
            message = f"the compiler gives ub as {printed} bytes, but its module shows {used}"
            return replace(blank, errors=(Diagnosis(message, blank.where, "this is a fault of touchstone"),))
        multi_buffer = "--enable-auto-multi-buffer=True" in flags
        return replace(blank, facts=facts, buffering=_buffering(facts, multi_buffer), binary_bytes=outcome.binary_bytes)


def _options(kernel: Specialisation, chip: Chip) -> Any:
    from triton.backends.ascend.compiler import NPUOptions

    return NPUOptions(**{**chip.options, **kernel.options})


def _buffering(facts: ModuleFacts, multi_buffer: bool) -> Buffering:
    if not multi_buffer:
        return "off"
    if not facts.loads_in_loop:
        return "not needed"
    return "kept" if facts.multi_buffers else "dropped"


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
