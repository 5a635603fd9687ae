"""RMS norm and LayerNorm in NumPy float32."""

from __future__ import annotations

import numpy as np

from .. import ops
from .activations import Buffers


def rms_norm(op: ops.RMSNorm, buffers: Buffers) -> None:
    x = buffers[op.x.name]
    own_weights = op.groups * len(op.weight) > op.x.width  # of each group
    size = op.x.width // op.groups if own_weights else len(op.weight)
    groups = x[:, : op.groups * size].reshape(len(x), op.groups, size)
    mean_square = np.mean(groups * groups, axis=-1, keepdims=True)
    normed = groups / np.sqrt(mean_square + np.float32(op.eps)) * op.weight.reshape(-1, size)
    rest = x[:, op.groups * size :]
    buffers[op.out.name] = np.concatenate([normed.reshape(len(x), op.groups * size), rest], axis=1)


def layer_norm(op: ops.LayerNorm, buffers: Buffers) -> None:
    x = buffers[op.x.name]
    groups = x.reshape(len(x), op.groups, -1)
    groups = groups - np.mean(groups, axis=-1, keepdims=True)
    variance = np.mean(groups * groups, axis=-1, keepdims=True)
    normed = (groups / np.sqrt(variance + np.float32(op.eps))).reshape(x.shape) * op.weight
    buffers[op.out.name] = normed if op.bias is None else normed + op.bias
