"""Activation functions and gates in NumPy float32; `ACTIVATIONS` has the functions by the names in ops."""

from __future__ import annotations

import math

import numpy as np

from .. import ops

Buffers = dict[str, np.ndarray]  # float32 [rows, width] by the name of the buffer


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
    positive = np.maximum(x, np.float32(0))
    return positive * positive


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


def activation(op: ops.Activation, buffers: Buffers) -> None:
    buffers[op.out.name] = ACTIVATIONS[op.kind](buffers[op.x.name])


def gated_activation(op: ops.GatedActivation, buffers: Buffers) -> None:
    gate, up = buffers[op.gate.name], buffers[op.up.name]
    up = up[:, op.up_start : op.up_start + op.gate.width]
    buffers[op.out.name] = ACTIVATIONS[op.kind](np.float32(op.scale) * gate) * up


def sigmoid_gate(op: ops.SigmoidGate, buffers: Buffers) -> None:
    buffers[op.x.name] = sigmoid(buffers[op.gate.name]) * buffers[op.x.name]


def gaussian_top_k(op: ops.GaussianTopK, buffers: Buffers) -> None:
    x = buffers[op.x.name]
    mean, std = x.mean(axis=-1, keepdims=True), x.std(axis=-1, keepdims=True)
    buffers[op.x.name] = np.maximum(x - (mean + std * np.float32(op.std_multiplier)), 0)
