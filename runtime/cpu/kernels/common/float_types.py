"""Loads and stores of float weights and float cache entries, by float type (F32, F16, BF16)."""

from __future__ import annotations

from typing import Any

from numba.extending import overload

from .....quant.jit.simd.memory import loadv_bf16, loadv_f16, loadv_f32, store_f16, store_f32
from ...abi.sizes import FLOAT_BYTES
from ...simd.dot8 import Codes

FLOATS = {name: Codes(name, limit=0) for name in FLOAT_BYTES}

_LOADS = {"F32": loadv_f32, "F16": loadv_f16, "BF16": loadv_bf16}
_STORES = {"F32": store_f32, "F16": store_f16}


def load_floats(kind: Codes, address: int) -> Any:
    """LANES consecutive numbers of float type `kind` at an address, widened to F32."""
    raise TypeError("for compiled code")


@overload(load_floats, jit_options={"forceinline": True})
def _choose_load_floats(kind: Any, address: Any) -> Any:
    load = _LOADS[kind.value.name]

    def read(kind: Any, address: Any) -> Any:
        return load(address)

    return read


def store_float(kind: Codes, address: int, value: float) -> None:
    """Write one float32, rounded to float type `kind` (F32 or F16)."""
    raise TypeError("for compiled code")


@overload(store_float, jit_options={"forceinline": True})
def _choose_store_float(kind: Any, address: Any, value: Any) -> Any:
    store = _STORES[kind.value.name]

    def write(kind: Any, address: Any, value: Any) -> Any:
        store(address, value)

    return write
