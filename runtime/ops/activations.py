"""Activation functions and gates. `reference/activations.py` is the specification."""

from __future__ import annotations

from dataclasses import dataclass

from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class Activation:
    """out = f(x); f as for GatedActivation, or "tanh". `out` may be `x`."""

    x: Buffer
    out: Buffer
    kind: str


@dataclass(frozen=True, eq=False)
class GatedActivation:
    """out = f(scale · gate) · up; f is "silu", "gelu_tanh", "gelu", "relu2" (max(x, 0)²) or "identity".

    `up` may be wider than `gate`: its columns from `up_start` on are read. `out` may be `gate`, or an `up` of
    the same width.
    """

    gate: Buffer
    up: Buffer
    out: Buffer
    kind: str
    scale: float = 1.0
    up_start: int = 0


@dataclass(frozen=True, eq=False)
class SigmoidGate:
    """x = sigmoid(gate) · x, in place. `gate` has the width of x, or 1."""

    gate: Buffer
    x: Buffer


@dataclass(frozen=True, eq=False)
class GaussianTopK:
    """x = max(x - (mean + std_multiplier · std), 0), in place, with the mean and standard deviation of a row.

    The activation sparsity of Gemma 3n: of normally distributed values, a fixed share stays above 0.
    """

    x: Buffer
    std_multiplier: float
