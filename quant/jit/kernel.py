"""CPU kernels by name: their machine code comes from the cache or, if it is not there, from Numba.

Neither Numba nor the module that defines a kernel is imported before the kernel must be compiled, so that a
program whose kernels are in the cache starts as fast as files are read.
"""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass
from functools import cached_property

from .decorators import EntryPoint
from .kernel_cache import CPU_SOURCES, KernelCache, MachineCode, kernel_cache

# One for the whole process, because Numba is: a second thread would find it half imported, and its compiler
# patched (`compiler._only_typed_and_lowered`).
_COMPILING = threading.RLock()


@dataclass(frozen=True)
class CpuKernel:
    """The entry point `name` of a module; where `name` is a dict of entry points, the one called `item`."""

    module: str
    name: str
    item: str = ""

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}.{self.name}" + (f"[{self.item}]" if self.item else "")

    @property
    def key(self) -> str:
        """The file name in the cache, without its suffix; no other kernel of the same sources has it."""
        return "-".join(part for part in (self.module, self.name, self.item.replace("/", "_")) if part)

    def entry_point(self) -> EntryPoint:
        """The function, from its module, which is imported."""
        value = getattr(importlib.import_module(self.module), self.name)
        return value[self.item] if self.item else value

    @cached_property
    def compiled(self) -> MachineCode:
        """The kernel in memory: from this process's cache, or compiled now."""
        return self.load(kernel_cache()) or self.compile(kernel_cache())

    @property
    def address(self) -> int:
        """The address of the machine code, valid as long as this process lives."""
        return self.compiled.address

    def load(self, cache: KernelCache) -> MachineCode | None:
        """The kernel from memory or from the cache; None if it is missing or damaged there."""
        code = self.__dict__.get("compiled") or cache.load(self.key)
        if code is not None:
            self.__dict__["compiled"] = code
        return code

    def compile(self, cache: KernelCache) -> MachineCode:
        """Compile the kernel and write it to the cache. Of several threads that call this, one compiles.

        Raises UntrackedSource if the kernel imports a module that is not in CPU_SOURCES.
        """
        with _COMPILING:
            if "compiled" not in self.__dict__:
                CPU_SOURCES.check(self.module)
                self.__dict__["compiled"] = cache.store(self.key, *self.entry_point().machine_code())
        return self.__dict__["compiled"]
