"""What the CPU machine has no kernels for yet."""

from __future__ import annotations

from . import ops

MISSING: tuple[type, ...] = ()


def cpu_gaps(program: ops.Program) -> list[str]:
    """The ops of a program that the CPU machine cannot run, each once, for an error message."""
    return list(dict.fromkeys(type(op).__name__ for op in program.ops if isinstance(op, MISSING)))
