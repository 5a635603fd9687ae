"""PTX instructions as Python functions.

The decorator `instruction` has the PTX text and the types of the operands, outputs first: r is a 32-bit
integer, l a 64-bit integer or address, f a float32. The function's body computes the same in Python, for the
tests' simulator (`tests/runtime/cuda/simulator.py`), which itself has the meaning of instructions that
exchange data with other threads. Several outputs are a tuple. Bytes and float16 are packed into 32-bit
integers, the first in the lowest bits.

Source: Parallel Thread Execution ISA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Instruction:
    """An instruction: what a function becomes when a kernel calls it.

    An `ordered` instruction accesses memory or other threads and is not moved; the compiler may move, merge
    and remove the others. The first `updated` operands share the registers of the outputs and have the
    outputs' numbers in `ptx`; the numbers of the other operands stay as they are.
    """

    name: str
    ptx: str
    outputs: str
    inputs: str
    ordered: bool
    meaning: Callable[..., Any]
    updated: int = 0

    def __call__(self, *operands: Any) -> Any:
        return self.meaning(*operands)


def instruction(
    ptx: str, outputs: str, inputs: str, ordered: bool = False, updated: int = 0
) -> Callable[..., Instruction]:
    """Decorator: turn a function into the instruction `ptx`, whose operands are $0, $1, …"""

    def mark(function: Callable[..., Any]) -> Instruction:
        return Instruction(function.__name__, ptx, outputs, inputs, ordered, function, updated)

    return mark
