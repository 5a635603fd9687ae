"""The CUDA driver's functions, called through ctypes: the driver comes with every NVIDIA card, and needs no
package.

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
    """`functions` by their names. A failure is a `CudaError` with a line that says what was asked for."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raises CudaError, or CudaOutOfMemory, unless it succeeds."""
        code = getattr(self._functions, name)(*arguments)
        if code:
            kind = CudaOutOfMemory if code == _OUT_OF_MEMORY else CudaError
            raise kind(f"{name} failed: {self.meaning(code)}")

    def code(self, name: str, *arguments: Any) -> int:
        """Call a function whose failure is looked at, or does not matter; what it returns, 0 for success."""
        return int(getattr(self._functions, name)(*arguments))

    def meaning(self, code: int) -> str:
        """What a function's result says."""
        text = c_char_p()
        self._functions.cuGetErrorString(code, byref(text))
        return (text.value or b"error").decode() + f", {code}"


def driver_functions() -> Any:
    """The driver's library; None where there is none."""
    names: Sequence[str] = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
