"""Compiling what a launch needs before it is launched, several kernels at once."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable
from contextlib import redirect_stdout

from triton.runtime.jit import JITFunction

from harness.devices.sim.backend import compiler
from harness.devices.sim.driver import SimDriver
from harness.devices.sim.dry import DryLaunch, dry_launches
from harness.devices.sim.frontend import Source

WORTH_A_START = 4
"""Kernels that must still wait for a second compiler process to be started. That is the work of three: with a core free
it pays from there on, beside other programs from a few more. One that runs already compiles whatever waits."""


def compile_ahead(launch: Callable[[], None], driver: SimDriver) -> None:
    """Run `launch` dry, and let its `@triton.jit` functions have what they would compile on `driver`, which is active.

    What raises here is left alone: the launch itself raises it again.
    """
    if JITFunction.cache_hook is not None or JITFunction.compiled_hook is not None:
        # Somebody watches what launches compile.
        return
    launches: list[DryLaunch] = []
    # What a launch prints, and what Triton prints of its options, shall be printed by the launch itself.
    with redirect_stdout(io.StringIO()) as printed:
        try:
            with dry_launches() as launches:
                launch()
        except Exception:
            pass
    needed = {(each.fn, each.key): each for each in launches if each.key not in each.fn.cache[driver.device]}
    _compile(deque(needed.values()), driver, keep=not printed.getvalue())


def _compile(waiting: deque[DryLaunch], driver: SimDriver, *, keep: bool) -> None:
    """Compile all that wait, up to the first that fails, on a second thread too from the first that Triton's cache on
    disk does not have. With `keep` the functions hold the kernels, else that cache alone."""
    second: threading.Thread | None = None

    def missed() -> None:
        nonlocal second
        processes = compiler()
        most = len(processes.processes)
        if second is None and most > 1 and len(waiting) >= (1 if processes.running == most else WORTH_A_START):
            processes.start(most)
            second = threading.Thread(target=work, name="compiling ahead")
            second.start()

    def work() -> None:
        while True:
            try:
                launch = waiting.popleft()
            except IndexError:
                return
            try:
                source = Source(launch.fn, launch.signature, launch.constants, launch.attributes, missed=missed)
                kernel = launch.fn.compile(source, target=driver.target, options=launch.options)
            except Exception:
                # Nothing after it will be launched.
                waiting.clear()
                return
            if keep:
                launch.fn.cache[driver.device][launch.key] = kernel

    try:
        work()
    finally:
        waiting.clear()
        if second is not None:
            second.join()
