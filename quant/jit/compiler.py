"""From a Python function to object code that needs no Numba to run."""

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
from .levels import cpu_features

# LLVM goes on to ask what Numba compiled for its owner, for as long as the process lives.
_OWNERS: list[Any] = []
_SIGNATURE = types.void(types.int64, types.int64, types.int64)


def machine_code(function: Callable[[int, int, int], None], fastmath: Any) -> tuple[bytes, list[str]]:
    """The object code of a kernel, whose entry point is `SYMBOL`, and the outside symbols that it names.

    Numba's own entry point for C reports exceptions and so drags half of Python's C interface in. What
    it compiled is taken from behind that, and given an entry point that drops them.
    """
    with global_compiler_lock, _only_typed_and_lowered():
        compiled = numba.cfunc(_SIGNATURE, nogil=True, error_model="numpy", fastmath=fastmath)(function)
        _OWNERS.append(compiled)
        native = compiled.native_name.removeprefix("cfunc.")
        module = llvm.parse_assembly(compiled.inspect_llvm())
    module.link_in(llvm.parse_assembly(_entry(native)))
    for symbol in module.functions:
        if not symbol.is_declaration and symbol.name != SYMBOL:
            symbol.linkage = "internal"
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=cpu_features().flatten(), opt=3, jit=True
    )
    _optimize(module, machine)
    outside = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    return machine.emit_object(module), outside


@contextmanager
def _only_typed_and_lowered() -> Iterator[None]:
    """Within this, Numba does not optimise and emit every helper by itself, to do it again in its callers.

    That is most of what LLVM would have to do. The lock that Numba compiles under keeps others out.
    """
    saved = [
        (CPUCodeLibrary, "_optimize_final_module", lambda self: None),
        (JITCodeLibrary, "_finalize_specific", lambda self: None),
        (JITCodeLibrary, "get_pointer_to_function", lambda self, name: self._ensure_finalized() or 0),
        (CPUContext, "get_executable", lambda self, library, fndesc, env: [].append),  # one of its own
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
    """What Numba would do to the whole; first without what the entry point does not need."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    before = llvm.create_new_module_pass_manager()
    before.add_global_dead_code_eliminate_pass()
    before.add_always_inliner_pass()
    before.add_sroa_pass()
    before.add_instruction_combine_pass()
    # Views of memory have no owner whose references could be counted: without this, calls that do nothing
    # stay in the loops, and loading a kernel takes all of Numba's runtime.
    before.add_refprune_pass()
    before.run(module, builder)
    builder.getModulePassManager().run(module, builder)
    after = llvm.create_new_module_pass_manager()
    after.add_refprune_pass()
    after.add_global_dead_code_eliminate_pass()
    after.run(module, builder)


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
