"""Activation functions in NumPy float32, by the names that ops have for them."""

from __future__ import annotations

import math

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # exp(-x) may become infinite, which gives the right 0
        return np.float32(1.0) / (np.float32(1.0) + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # exp(-x) may become infinite, which gives the right 0
        return x / (np.float32(1.0) + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1.0) + np.tanh(inner))


def gelu(x: np.ndarray) -> np.ndarray:
    erf = np.asarray(_ERF(x / np.float32(math.sqrt(2))), np.float32)
    return np.float32(0.5) * x * (np.float32(1.0) + erf)


def relu2(x: np.ndarray) -> np.ndarray:
    above = np.maximum(x, np.float32(0))
    return above * above


def identity(x: np.ndarray) -> np.ndarray:
    return x


def tanh(x: np.ndarray) -> np.ndarray:
    return np.tanh(x)


_ERF = np.frompyfunc(math.erf, 1, 1)

ACTIVATIONS = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
    "relu2": relu2,
    "identity": identity,
    "tanh": tanh,
}
