"""PTX instructions on 64-bit integers; see `ptx.py`."""

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


@instruction(
    "{ .reg .b32 low, high; mov.b64 {low, high}, $1; "
    "shfl.sync.bfly.b32 low, low, $2, 31, 0xffffffff; shfl.sync.bfly.b32 high, high, $2, 31, 0xffffffff; "
    "mov.b64 $0, {low, high}; }",
    "l",
    "lr",
    ordered=True,
)
def shuffle_xor_long(value: int, mask: int) -> int:
    """The value of the lane whose number differs by `mask`."""
