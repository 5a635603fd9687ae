"""PTX instructions on 64-bit integers in memory; see `ptx.py`."""

from __future__ import annotations

import ctypes

from .ptx import instruction


@instruction("ld.global.u64 $0, [$1];", "l", "l", ordered=True)
def load_long(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


@instruction("st.global.u64 [$0], $1;", "", "ll", ordered=True)
def store_long(address: int, value: int) -> None:
    ctypes.c_int64.from_address(address).value = value


@instruction("ld.shared.u64 $0, [$1];", "l", "r", ordered=True)
def load_shared_long(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


@instruction("st.shared.u64 [$0], $1;", "", "rl", ordered=True)
def store_shared_long(address: int, value: int) -> None:
    ctypes.c_int64.from_address(address).value = value
