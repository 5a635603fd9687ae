"""The CUDA driver API, called through ctypes, since every NVIDIA driver brings its library along and no
Python package is needed.

Source: CUDA Driver API.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from ctypes import byref, c_char_p
from typing import Any

from .errors import CudaError, CudaOutOfMemory

_OUT_OF_MEMORY = 2


class Library:
    """Calls functions of a loaded driver library by name, and turns result codes into exceptions."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises CudaOutOfMemory or CudaError, with the function's name, if it fails."""
        code = getattr(self._functions, name)(*arguments)
        if code:
            kind = CudaOutOfMemory if code == _OUT_OF_MEMORY else CudaError
            raise kind(f"{name} failed: {self.meaning(code)}")

    def code(self, name: str, *arguments: Any) -> int:
        """Call a function and return its result code, 0 for success, instead of raising."""
        return int(getattr(self._functions, name)(*arguments))

    def meaning(self, code: int) -> str:
        """The driver's text for a result code, and the code."""
        text = c_char_p()
        self._functions.cuGetErrorString(code, byref(text))
        return (text.value or b"error").decode() + f", {code}"


def driver_functions() -> Any:
    """The loaded driver library; None if this machine has none."""
    names: Sequence[str] = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
