#!/usr/bin/env python3
"""The assembly of a product in matrix tiles, as LLVM makes it for a CPU with AMX; runs on any x86-64.

    python scripts/amx_assembly.py [FORMAT]

Nothing of it is run. It needs a process of its own: the compiler may ask for the code again, for this CPU.
"""

from __future__ import annotations

import sys
from typing import Any

import llvmlite.binding as llvm

from kukri.quant.jit import compiler
from kukri.quant.jit.levels import cpu_features
from kukri.runtime.cpu.kernels.matmul.tile_gemm import TILE_GEMMS


def assembly(name: str) -> str:
    """The assembly of the kernel for weights of format `name`."""
    features, texts, emit = cpu_features(), list[str](), llvm.TargetMachine.emit_object
    features["amx-tile"] = features["amx-bf16"] = features["avx512bf16"] = True

    def emit_object(machine: Any, module: Any) -> bytes:
        texts.append(machine.emit_assembly(module))
        return emit(machine, module)

    compiler.cpu_features = lambda: features
    llvm.TargetMachine.emit_object = emit_object
    TILE_GEMMS[name].machine_code()
    return texts[0]


if __name__ == "__main__":
    print(assembly(*sys.argv[1:] or ["Q4_0"]))
