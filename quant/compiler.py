"""From a Python function to object code that needs no Numba to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types

from .kernel_cache import SYMBOL

_SIGNATURE = types.void(types.int64, types.int64, types.int64)


def machine_code(function: Callable[[int, int, int], None], fastmath: Any) -> tuple[bytes, list[str]]:
    """The object code of a kernel, whose entry point is `SYMBOL`, and the outside symbols that it names.

    Numba's own entry point for C reports exceptions and so drags half of Python's C interface in. What
    it compiled is taken from behind that, and given an entry point that drops them.
    """
    compiled = numba.cfunc(_SIGNATURE, nogil=True, error_model="numpy", fastmath=fastmath)(function)
    native = compiled.native_name.removeprefix("cfunc.")
    module = llvm.parse_assembly(compiled.inspect_llvm())
    module.link_in(llvm.parse_assembly(_entry(native)))
    for symbol in module.functions:
        if not symbol.is_declaration and symbol.name != SYMBOL:
            symbol.linkage = "internal"
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0)))
    outside = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    return machine.emit_object(module), outside


def _entry(native: str) -> str:
    """LLVM code of the entry point: calls the function as Numba does and drops result and exception."""
    return f"""
        declare i32 @"{native}"(ptr, ptr, i64, i64, i64)
        define void @{SYMBOL}(i64 %arguments, i64 %step, i64 %thread) {{
            %result = alloca ptr
            %exception = alloca ptr
            call i32 @"{native}"(ptr %result, ptr %exception, i64 %arguments, i64 %step, i64 %thread)
            ret void
        }}"""
