"""The recurrent ops in NumPy float32, one position after the other.

Each function reads the rows of one sequence, in order, and updates its state in place.
"""

from __future__ import annotations

import numpy as np

from ..ops import CausalConv, DeltaRule, StateScan
from .activations import sigmoid, silu


def causal_conv(op: CausalConv, state: np.ndarray, x: np.ndarray) -> np.ndarray:
    """float32 [rows, channels]."""
    taps = op.weight.shape[1]
    window = np.concatenate([state, x])
    out = np.zeros_like(x)
    for j in range(taps):
        out += op.weight[:, j] * window[j : j + len(x)]
    if op.bias is not None:
        out += op.bias
    state[:] = window[len(x) :]
    return silu(out) if op.silu else out


def delta_rule(
    op: DeltaRule, state: np.ndarray, qkv: np.ndarray, beta: np.ndarray, step: np.ndarray
) -> np.ndarray:
    """float32 [rows, heads · head_dim]."""
    n, keys = len(qkv), op.groups * op.key_dim
    q, k = (part.reshape(n, op.groups, op.key_dim) for part in (qkv[:, :keys], qkv[:, keys : 2 * keys]))
    q, k = (part / np.sqrt((part * part).sum(-1, keepdims=True) + np.float32(op.eps)) for part in (q, k))
    heads = np.arange(op.heads)
    group = heads % op.groups if op.tiled else heads // (op.heads // op.groups)
    q, k = q[:, group] / np.float32(op.key_dim**0.5), k[:, group]  # [n, heads, key_dim]
    v = qkv[:, 2 * keys :].reshape(n, op.heads, op.head_dim)
    beta, decay = sigmoid(beta), np.exp(op.a * softplus(step + op.step_bias))  # [n, heads]
    out = np.empty_like(v)
    for p in range(n):
        state *= decay[p, :, None, None]
        delta = beta[p, :, None] * (v[p] - np.einsum("hk,hkv->hv", k[p], state))
        state += k[p, :, :, None] * delta[:, None, :]
        out[p] = np.einsum("hk,hkv->hv", q[p], state)
    return out.reshape(n, -1)


def state_scan(op: StateScan, state: np.ndarray, xbc: np.ndarray, step: np.ndarray) -> np.ndarray:
    """float32 [rows, heads · head_dim]."""
    n, inner, width = len(xbc), op.out.width, op.groups * op.state_size
    x = xbc[:, :inner].reshape(n, op.heads, op.head_dim)
    group = np.arange(op.heads) // (op.heads // op.groups)
    b = xbc[:, inner : inner + width].reshape(n, op.groups, -1)[:, group]  # [n, heads, state_size]
    c = xbc[:, inner + width :].reshape(n, op.groups, -1)[:, group]
    dt = softplus(step * np.float32(op.step_scale) + op.step_bias)  # [n, heads]
    decay = np.exp(op.a * dt)
    out = np.empty_like(x)
    for p in range(n):
        state *= decay[p, :, None, None]
        state += (dt[p, :, None] * x[p])[:, :, None] * b[p, :, None, :]
        out[p] = np.einsum("hds,hs->hd", state, c[p]) + op.skip[:, None] * x[p]
    return out.reshape(n, -1)


def softplus(x: np.ndarray) -> np.ndarray:
    """ln(1 + exp(x))."""
    return np.logaddexp(x, np.float32(0))
