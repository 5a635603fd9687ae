"""The decorators of compiled CPU code: `jit` for functions that kernels call, `kernel` for kernels.

Numba is imported when something must be compiled, not before. Numba's own cache is not used: it notices edits
of the file that defines a kernel, but not of the files whose functions it calls, and reading it takes an
import of all of Numba. Kernels are run by name (`kernel.CpuKernel`), without an import of their modules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

# (address of the argument record, address of the step's record, number of the thread)
KernelFunction = Callable[[int, int, int], None]


class InlineFunction:
    """A function that is compiled into every kernel that calls it. Python cannot call it."""

    def __init__(self, function: Callable) -> None:
        self.py_func = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's dispatcher, which compiles the function for the types it is called with."""
        import numba

        # Without the wrappers for calls from Python and C, which would only take time to compile.
        options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return numba.njit(self.py_func, nogil=True, error_model="numpy", forceinline=True, **options)

    @property
    def _numba_type_(self) -> Any:
        """The Numba type of this object as a global of compiled code: that of its dispatcher."""
        from numba import typeof

        return typeof(self.dispatcher)

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.__name__} is for compiled code")


def jit(function: Callable) -> Any:
    """Decorator of a function that kernels call: see `InlineFunction`."""
    return InlineFunction(function)


class EntryPoint:
    """A kernel: a function `f(arguments, step, thread)` that is called as machine code.

    An exception that it raises ends it and is lost. `fastmath` is `numba.njit`'s: False, or a set of LLVM's
    fast-math flags.
    """

    def __init__(self, function: KernelFunction, fastmath: Any = False) -> None:
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self._function = function
        self._fastmath = fastmath

    def machine_code(self) -> tuple[bytes, list[str]]:
        """Compile the kernel: its object code, and the names of the outside symbols that this needs."""
        from . import compiler

        return compiler.machine_code(self._function, self._fastmath)


def kernel(function: KernelFunction) -> EntryPoint:
    """Decorator of a kernel with strict floating-point arithmetic."""
    return EntryPoint(function)


def reassociating_kernel(function: KernelFunction) -> EntryPoint:
    """Decorator of a kernel in which LLVM may reorder sums (`reassoc`), so that it can vectorise them."""
    return EntryPoint(function, fastmath={"reassoc", "contract", "nsz"})
