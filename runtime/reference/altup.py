"""The ops of `ops_streams.py` in NumPy, each over `buffers`, the float32 contents by name."""

from __future__ import annotations

import numpy as np

from ..ops import altup as ops

Buffers = dict[str, np.ndarray]


def sparsify(op: ops.Sparsify, buffers: Buffers) -> None:
    x = buffers[op.x.name]
    mean, deviation = x.mean(axis=-1, keepdims=True), x.std(axis=-1, keepdims=True)
    buffers[op.x.name] = np.maximum(x - (mean + deviation * np.float32(op.deviations)), 0)


def match_magnitude(op: ops.MatchMagnitude, buffers: Buffers) -> None:
    x, like = buffers[op.x.name], buffers[op.like.name]
    own, wanted = (np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True)) for rows in (x, like))
    buffers[op.x.name] = x * wanted / np.maximum(own, np.float32(op.floor))


def predict_streams(op: ops.AltUpPredict, buffers: Buffers) -> None:
    streams = np.stack([buffers[stream.name] for stream in op.streams], axis=1)  # [rows, n, width]
    n = len(op.streams)
    streams = streams + buffers[op.coefficients.name].reshape(-1, n, n) @ streams
    for i, stream in enumerate(op.streams):
        buffers[stream.name] = streams[:, i]
    buffers[op.out.name] = streams[:, op.active]


def correct_streams(op: ops.AltUpCorrect, buffers: Buffers) -> None:
    innovation = buffers[op.x.name] - buffers[op.streams[op.active].name]
    coefficients = buffers[op.coefficients.name] + 1
    for i, stream in enumerate(op.streams):
        buffers[stream.name] = buffers[stream.name] + coefficients[:, i, None] * innovation
    buffers[op.x.name] = buffers[op.streams[op.active].name] * op.weight
