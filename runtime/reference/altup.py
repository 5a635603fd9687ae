"""The ops of AltUp in NumPy float32."""

from __future__ import annotations

import numpy as np

from .. import ops
from .activations import Buffers


def match_magnitude(op: ops.MatchMagnitude, buffers: Buffers) -> None:
    x, like = buffers[op.x.name], buffers[op.like.name]
    rms, target = (np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True)) for rows in (x, like))
    buffers[op.x.name] = x * target / np.maximum(rms, np.float32(op.floor))


def altup_predict(op: ops.AltUpPredict, buffers: Buffers) -> None:
    streams = np.stack([buffers[stream.name] for stream in op.streams], axis=1)  # [rows, n, width]
    n = len(op.streams)
    streams = streams + buffers[op.coefficients.name].reshape(-1, n, n) @ streams
    for i, stream in enumerate(op.streams):
        buffers[stream.name] = streams[:, i]
    buffers[op.out.name] = streams[:, op.active]


def altup_correct(op: ops.AltUpCorrect, buffers: Buffers) -> None:
    innovation = buffers[op.x.name] - buffers[op.streams[op.active].name]
    coefficients = buffers[op.coefficients.name] + 1
    for i, stream in enumerate(op.streams):
        buffers[stream.name] = buffers[stream.name] + coefficients[:, i, None] * innovation
    buffers[op.x.name] = buffers[op.streams[op.active].name] * op.weight
