"""Kernels by name: machine code at an address that the cache or, if it is not there, Numba gives.

Neither Numba nor the module that defines a kernel is imported before it must be compiled, so that a program
whose kernels are in the cache starts as fast as files are read.
"""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass
from functools import cached_property

from .decorators import EntryPoint
from .kernel_cache import KernelCache, MachineCode, kernel_cache

# Numba is imported and used by one thread at a time: another one would find it half set up.
_COMPILING = threading.RLock()


@dataclass(frozen=True)
class CpuKernel:
    """The entry point `name` of a module; or, if that is a table of them, the one called `item`."""

    module: str
    name: str
    item: str = ""

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}.{self.name}" + (f"[{self.item}]" if self.item else "")

    @property
    def key(self) -> str:
        """A file name that no other kernel of the same sources has."""
        return "-".join(part for part in (self.module, self.name, self.item) if part)

    def entry_point(self) -> EntryPoint:
        """The function, out of its module."""
        found = getattr(importlib.import_module(self.module), self.name)
        return found[self.item] if self.item else found

    @cached_property
    def compiled(self) -> MachineCode:
        return self.load(kernel_cache()) or self.compile(kernel_cache())

    @property
    def address(self) -> int:
        return self.compiled.address

    def load(self, cache: KernelCache) -> MachineCode | None:
        """The kernel from the cache, None if it is missing or damaged there."""
        code = self.__dict__.get("compiled") or cache.load(self.key)
        if code is not None:
            self.__dict__["compiled"] = code
        return code

    def compile(self, cache: KernelCache) -> MachineCode:
        """Compile the kernel and keep it in the cache. Of several threads that want it, one does so."""
        with _COMPILING:
            if "compiled" not in self.__dict__:
                self.__dict__["compiled"] = cache.store(self.key, *self.entry_point().machine_code())
        return self.__dict__["compiled"]
