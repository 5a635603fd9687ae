"""Intrinsics for a team of threads: atomics, the pause of a spin loop, calls of kernels by address."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types

from ..llvm_ir import I32_, I64, call
from .vectors import instruction


@instruction(types.int64, types.int64, types.int64)
def atomic_add(builder: Any, address: Any, value: Any) -> Any:
    """Atomically add to the int64 at an address and return its previous value; lock xadd."""
    return builder.atomic_rmw("add", builder.inttoptr(address, I64.as_pointer()), value, "seq_cst")


@instruction(types.int64, types.int64)
def atomic_load(builder: Any, address: Any) -> Any:
    """Load the int64 at an address with acquire order: writes made before it was stored are visible after."""
    return builder.load_atomic(builder.inttoptr(address, I64.as_pointer()), "acquire", 8)


@instruction(types.none, types.int64, types.int64)
def atomic_store(builder: Any, address: Any, value: Any) -> None:
    """Store an int64 with release order: writes made before are visible to who loads it; mov."""
    builder.store_atomic(value, builder.inttoptr(address, I64.as_pointer()), "release", 8)


@instruction(types.none)
def pause(builder: Any) -> None:
    """Hint to the core that this is a spin loop; pause on x86-64, yield on arm64."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())
    elif machine in ("aarch64", "arm64"):
        call(builder, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(I32_, 1))


@instruction(types.none, types.int64, types.int64, types.int64, types.int64)
def call_kernel(builder: Any, address: Any, arguments: Any, step: Any, thread: Any) -> None:
    """Call the kernel whose machine code is at `address` (`kernel.CpuKernel.address`)."""
    fnty = ir.FunctionType(ir.VoidType(), [I64, I64, I64])
    builder.call(builder.inttoptr(address, fnty.as_pointer()), [arguments, step, thread])
