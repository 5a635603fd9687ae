"""Unpacks 32 weights of LANES rows from a panel into registers, for every block format.

`unpack(codes, panel, n_blocks, group)` reads group number `group` (32 columns) of the panel at address
`panel`, whose rows have `n_blocks` blocks. It returns one of four tuples, by what the format has:

* (words, scale)                      w = scale · (code - zero)
* (words, scale, minimum)             w = scale · code - minimum
* (low, high, scale_low, scale_high)  as the first, with a scale for each half of 16 columns
* (low, high, scale_low, scale_high, minimum_low, minimum_high)

`words` are 8 I32 (`low` and `high`: 4 each), every lane holding four consecutive 8-bit codes of its row.
Multipliers and minima are F32, one lane a row.
"""

from __future__ import annotations

from typing import Any

from numba.extending import overload

from .....quant.jit.simd.vectors import ConstantType
from ...simd.dot8 import Codes
from .unpack_32 import UNPACKERS as UNPACKERS_32
from .unpack_256 import UNPACKERS as UNPACKERS_256

_UNPACKERS = UNPACKERS_32 | UNPACKERS_256
CODES: dict[str, Codes] = {name: codes for name, (codes, _) in _UNPACKERS.items()}  # by block format

HALVES = {"Q6_K", "Q3_K", "Q2_K", "NVFP4"}  # formats with a scale for each 16 weights
MINIMA = {"Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q2_K"}  # formats with minima


def unpack(codes: Codes, panel: int, n_blocks: int, group: int) -> Any:
    """Unpack one group, as the module docstring says; `codes` is a compile-time constant."""
    raise TypeError("for compiled code")


@overload(unpack, jit_options={"forceinline": True})
def _choose_unpack(codes: Any, panel: Any, n_blocks: Any, group: Any) -> Any:
    return _UNPACKERS[codes.value.name][1] if isinstance(codes, ConstantType) else None
