"""What a function that stands for a PTX instruction is.

Its decorator says which instruction it becomes and what its operands are: r a 32-bit integer, l a 64-bit one
or an address, f a float32; outputs first. Its body, where there is one, says the same in Python, and is what
the tests' simulator (`tests/runtime/cuda/simulator.py`) runs, which has the meaning of instructions that look
at other threads. Of several outputs a tuple is returned. Words of bytes and of halves are 32-bit
integers, the first one lowest.

Source: Parallel Thread Execution ISA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Instruction:
    """What a function of this module becomes. `ordered`: it touches memory or other threads, and stays
    where it is; other instructions may be moved, merged and dropped. The first `updated` operands are
    in the registers of as many outputs, by whose numbers PTX names them; those behind keep their own.
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
    """Make a function stand for the instruction `ptx`, whose operands are $0, $1, …"""

    def mark(function: Callable[..., Any]) -> Instruction:
        return Instruction(function.__name__, ptx, outputs, inputs, ordered, function, updated)

    return mark
