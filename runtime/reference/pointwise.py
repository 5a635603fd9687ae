"""Sums, soft caps and the selection of rows in NumPy float32."""

from __future__ import annotations

import numpy as np

from .. import ops
from .activations import Buffers


def add(op: ops.Add, buffers: Buffers) -> None:
    scaled = buffers[op.x.name] * np.float32(op.scale)
    buffers[op.out.name] = buffers[op.out.name] * np.float32(op.keep) + scaled


def select_rows(op: ops.SelectRows, buffers: Buffers, logits_indices: np.ndarray) -> None:
    """`logits_indices`: int [logits rows], the rows whose logits are asked for."""
    buffers[op.out.name] = buffers[op.x.name][logits_indices]


def soft_cap(op: ops.SoftCap, buffers: Buffers) -> None:
    cap = np.float32(op.cap)
    buffers[op.x.name] = cap * np.tanh(buffers[op.x.name] / cap)
