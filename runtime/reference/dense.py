"""Embedding tables and matrix products in NumPy float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ...quant.block import QTensor
from .. import ops
from .activations import Buffers

# Dequantises a matrix to float32 in blocks of rows, each with the index of its first row
Dequantize = Callable[[QTensor], Iterable[tuple[int, np.ndarray]]]


def embed(op: ops.Embed, buffers: Buffers, tokens: np.ndarray) -> None:
    """`tokens`: int [rows]."""
    tokens = np.where(tokens < op.table.shape[0], tokens, 0)
    buffers[op.out.name] = op.table.rows(tokens) * np.float32(op.scale)


def add_positions(op: ops.AddPositions, buffers: Buffers, positions: np.ndarray) -> None:
    """`positions`: int [rows]."""
    buffers[op.x.name] = buffers[op.x.name] + op.table.rows(positions)


def matmul(op: ops.MatMul, buffers: Buffers, dequantize: Dequantize) -> None:
    x = buffers[op.x.name]
    out = np.empty((len(x), op.out.width), np.float32)
    for start, weight in dequantize(op.weight):
        out[:, start : start + len(weight)] = x @ weight.T
    if op.bias is not None:
        out += op.bias
    if op.accumulate:
        out += buffers[op.out.name]
    buffers[op.out.name] = out


def head_matmul(op: ops.HeadMatMul, buffers: Buffers, dequantize: Dequantize) -> None:
    x = buffers[op.x.name]
    heads = x.reshape(len(x), len(op.weights), -1)
    columns = []
    for h, tensor in enumerate(op.weights):
        inputs = tensor.shape[1]
        columns += [heads[:, h, :inputs] @ weight.T for _, weight in dequantize(tensor)]
        columns.append(heads[:, h, inputs:])
    buffers[op.out.name] = np.concatenate(columns, axis=1)
