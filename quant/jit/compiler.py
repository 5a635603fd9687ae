"""Compiling a Python function to object code that runs without Numba.

Numba types and lowers the function to LLVM code; the rest of its pipeline is replaced: see `machine_code`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types
from numba.core.codegen import CPUCodeLibrary, JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu import CPUContext

from .kernel_cache import SYMBOL
from .levels import LEVEL, cpu_features, features_of

# What Numba compiled, kept for as long as the process lives: LLVM may call its code library for the addresses
# of symbols at any later compilation, and crashes if that has been collected.
_COMPILED: list[Any] = []
_SIGNATURE = types.void(types.int64, types.int64, types.int64)


def machine_code(function: Callable[[int, int, int], None], fastmath: Any) -> tuple[bytes, list[str]]:
    """The object code of a kernel with the entry point `SYMBOL`, and the outside symbols that it needs.

    The entry point that Numba makes for C callers reports exceptions, and so needs much of Python's C API.
    It is replaced by one that calls the compiled function and drops exceptions.
    """
    with global_compiler_lock, _only_typed_and_lowered():
        compiled = numba.cfunc(_SIGNATURE, nogil=True, error_model="numpy", fastmath=fastmath)(function)
        _COMPILED.append(compiled)
        native = compiled.native_name.removeprefix("cfunc.")
        module = llvm.parse_assembly(compiled.inspect_llvm())
    module.link_in(llvm.parse_assembly(_entry(native)))
    for symbol in module.functions:
        if not symbol.is_declaration and symbol.name != SYMBOL:
            symbol.linkage = "internal"
    features = llvm.FeatureMap(features_of(LEVEL, cpu_features()))
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3, jit=True
    )
    _optimize(module, machine)
    outside = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    return machine.emit_object(module), outside


@contextmanager
def _only_typed_and_lowered() -> Iterator[None]:
    """A context in which Numba types and lowers functions, but neither optimises nor emits them.

    Numba would do that for every inlined function by itself and again within its callers, which is most of
    LLVM's work. The four methods are patched for the whole process; Numba's compiler lock, which the caller
    holds, keeps other threads from compiling meanwhile.
    """
    saved = [
        (CPUCodeLibrary, "_optimize_final_module", lambda self: None),
        (JITCodeLibrary, "_finalize_specific", lambda self: None),
        (JITCodeLibrary, "get_pointer_to_function", lambda self, name: self._ensure_finalized() or 0),
        (CPUContext, "get_executable", lambda self, library, fndesc, env: [].append),  # any new callable
    ]
    before = [getattr(owner, name) for owner, name, _ in saved]
    try:
        for owner, name, instead in saved:
            setattr(owner, name, instead)
        yield
    finally:
        for (owner, name, _), method in zip(saved, before, strict=True):
            setattr(owner, name, method)


def _optimize(module: Any, machine: Any) -> None:
    """Optimise the whole module like Numba does, after removing what the entry point does not call."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    before = llvm.create_new_module_pass_manager()
    before.add_global_dead_code_eliminate_pass()
    before.add_always_inliner_pass()
    before.add_sroa_pass()
    before.add_instruction_combine_pass()
    # Kernels view memory that no Python object owns, so that Numba's reference counting has no effect. Unless
    # it is pruned, its calls stay in the loops, and a kernel needs the symbols of Numba's runtime.
    before.add_refprune_pass()
    before.run(module, builder)
    builder.getModulePassManager().run(module, builder)
    after = llvm.create_new_module_pass_manager()
    after.add_refprune_pass()
    after.add_global_dead_code_eliminate_pass()
    after.run(module, builder)


def _entry(native: str) -> str:
    """LLVM code of the entry point: a call by Numba's convention that drops result and exception."""
    return f"""
        declare i32 @"{native}"(ptr, ptr, i64, i64, i64)
        define void @{SYMBOL}(i64 %arguments, i64 %step, i64 %thread) {{
            %result = alloca ptr
            %exception = alloca ptr
            call i32 @"{native}"(ptr %result, ptr %exception, i64 %arguments, i64 %step, i64 %thread)
            ret void
        }}"""
