"""A plugin for pytest that runs the CPU kernels of tests as an emulated arm64 CPU.

    KUKRI_SIMD=i8mm pytest -p kukri.tests.on_arm64 tests/runtime/cpu/test_matmul.py

This process pretends to be arm64 Linux (scripts/arm64_assembly.py), so that kernels are compiled for that;
where a test calls one, it runs in an emulator (`arm64/emulator.py`). Machines have one thread. Tests that
compile functions of their own by Numba are not meant.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from kukri.tests.script_modules import load_script

assert "kukri.quant.jit.levels" not in sys.modules, "the level has been chosen already"
load_script("arm64_assembly.py").pretend_arm64(os.environ.get("KUKRI_SIMD", "i8mm"))

import llvmlite.binding as llvm  # noqa: E402 - the level is chosen when the package is imported

import kukri.quant.jit.kernel_cache as kernel_cache  # noqa: E402
import kukri.runtime.cpu.machine as cpu_machine  # noqa: E402
import kukri.runtime.cpu.team as team  # noqa: E402
from kukri.tests.arm64.emulator import EmulatedCode, Emulator  # noqa: E402

_caching: Any = kernel_cache
_machine: Any = cpu_machine
_team: Any = team

EmulatedCode.emulator = Emulator()
_caching.MachineCode = EmulatedCode
_caching._llvm = lambda: llvm
_caching._resolved = lambda symbols: True
_team._give_way_address = lambda: 0  # it would be an address of this process

_create_target_machine = llvm.Target.create_target_machine


def _for_shared_libraries(self: Any, jit: bool = False, **options: Any) -> Any:
    """A target machine whose object code a linker takes: constants are addressed as in shared libraries."""
    return _create_target_machine(self, **(options | {"reloc": "pic", "codemodel": "small"}))


_llvm: Any = llvm
_llvm.Target.create_target_machine = _for_shared_libraries

_init = cpu_machine.CpuMachine.__init__


def _with_one_thread(self: Any, *args: Any, **more: Any) -> None:
    _init(self, *args, **(more | {"threads": 1}))


_machine.CpuMachine.__init__ = _with_one_thread
