"""The op by which the cards that share the work of a layer exchange its results."""

from __future__ import annotations

from dataclasses import dataclass

from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class AllReduce:
    """x = Σ of x over all machines that run this step, summed in the order of the machines, and so the same
    on each. See `engine/tensor_split.py`."""

    x: Buffer
