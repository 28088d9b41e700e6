"""From a routine's name to its native object."""

from __future__ import annotations

import llvmlite.binding as llvm

from harness.devices.sim.objects import target_machine
from harness.devices.sim.routines.catalog import ROUTINES
from harness.devices.sim.routines.cpu import cpu_of


def compile_routine(name: str) -> bytes:
    """The object of a routine for the CPU that kernels are compiled for. LLVM has nothing left to optimise in one."""
    machine = target_machine()
    module = llvm.parse_assembly(str(ROUTINES[name](cpu_of(machine))))
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    return bytes(machine.emit_object(module))
