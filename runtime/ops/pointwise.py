"""Sums, soft caps and the selection of rows. `reference/pointwise.py` is the specification."""

from __future__ import annotations

from dataclasses import dataclass

from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class Add:
    """out = keep · out + scale · x."""

    x: Buffer
    out: Buffer
    scale: float = 1.0
    keep: float = 1.0


@dataclass(frozen=True, eq=False)
class SelectRows:
    """out = x[logits_indices]: from here on only the rows whose logits are asked for."""

    x: Buffer
    out: Buffer


@dataclass(frozen=True, eq=False)
class SoftCap:
    """x = cap · tanh(x / cap), in place."""

    x: Buffer
    cap: float
