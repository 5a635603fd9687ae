"""What is done to pooled vectors: dense layers, norms, and scaling to unit length, in NumPy float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_ERF = np.frompyfunc(math.erf, 1, 1)


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.float32(0.5) * x * (np.float32(1) + np.asarray(_ERF(x / np.float32(2**0.5)), np.float32))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner = np.float32((2 / math.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x)."""
    with np.errstate(over="ignore"):  # e^-x may become infinite, which gives the right 0
        return np.float32(1) / (np.float32(1) + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
}


@dataclass(frozen=True, eq=False)
class Dense:
    """x → activation(x @ weightᵀ + bias); weight float32 [outputs, inputs], bias [outputs] or None."""

    weight: np.ndarray
    bias: np.ndarray | None = None
    activation: str = "identity"  # one of ACTIVATIONS

    def __call__(self, x: np.ndarray) -> np.ndarray:
        out = x @ self.weight.T
        return ACTIVATIONS[self.activation](out if self.bias is None else out + self.bias)


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """(x - mean) / sqrt(variance + eps) · weight + bias, over each vector."""

    weight: np.ndarray
    bias: np.ndarray | None = None
    eps: float = 1e-5

    def __call__(self, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        out = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(self.eps))
        return out * self.weight if self.bias is None else out * self.weight + self.bias


@dataclass(frozen=True)
class Normalize:
    """x / |x|: vectors of unit length, whose products are cosines; zeros stay as they are."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), np.float32(1e-12))


Stage = Dense | LayerNorm | Normalize
