"""Hessians for GPTQ: the second moments of each matrix's inputs while a model reads a text.

The text runs through the reference machine in windows, all of them through one layer before the next, so that
only one layer's weights and Hessians are in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from .. import ops
from .machine import (
    CalibrationMachine,
    LayerInputs,
    Release,
    SquareSums,
    live_buffers,
    split_layers,
    zero_nonfinite,
)

_WINDOWS = 2  # that are run, and whose matrix inputs are kept, at a time
_KEPT_BYTES = 1 << 28  # of a layer's matrices in float32; others are dequantised for each window
_TILE = 512  # rows and columns of a Hessian that a thread adds to at a time
_PRIOR_ROWS = 16  # rows of the mean of all experts that are added to the rows of each


@dataclass(frozen=True)
class FullHessian:
    """mean xxᵀ of the inputs x that the matrices `names` have in common: float32 [width, width]."""

    names: tuple[str, ...]
    values: np.ndarray


@dataclass(frozen=True)
class DiagonalHessian:
    """mean x² of the inputs x of each expert's matrix in the stack `name`: float32 [experts, width]."""

    name: str
    values: np.ndarray


LayerHessians = list[FullHessian | DiagonalHessian]


@dataclass(frozen=True)
class _Text:
    """Windows int32 [n, context], and `live`, the buffers of each after the last layer that it ran through.

    Running a layer replaces `live` by the buffers that later layers `needed`.
    """

    windows: np.ndarray
    live: list[dict[str, np.ndarray]]
    needed: set[str]


def layer_hessians(
    program: ops.Program,
    names: Mapping[int, str],
    windows: np.ndarray,
    threads: int = 1,
    release: Release = lambda tensor: None,
) -> Iterator[LayerHessians]:
    """Yields the Hessians of each layer's matrices in turn, and of the output matrix last.

    `names` are the names of tensors by `id`, `windows` the text, int32 [n, context]. A layer's Hessians are
    not kept here after they are yielded. `release` is called with tensors that have been read. The result
    does not depend on `threads`.
    """
    parts = split_layers(program)
    machines = [CalibrationMachine(program, windows.shape[1], release) for _ in range(threads)]
    live: list[dict[str, np.ndarray]] = [{} for _ in windows]
    with ThreadPoolExecutor(threads) as pool:
        for k, part in enumerate(parts):
            needed = live_buffers([op for later in parts[k + 1 :] for op in later])
            text = _Text(windows, live, needed)
            yield _layer(part, machines, pool, names, text, release)


def _layer(
    part: Sequence[ops.Op],
    machines: Sequence[CalibrationMachine],
    pool: ThreadPoolExecutor,
    names: Mapping[int, str],
    text: _Text,
    release: Release,
) -> LayerHessians:
    """Run all windows of a text through a layer."""
    logits = machines[0].program.logits.name
    tensors = [op.weight for op in part if isinstance(op, ops.MatMul) and op.out.name != logits]
    weights: dict[int, np.ndarray] = {}
    left = _KEPT_BYTES
    for tensor in tensors:
        size = 4 * math.prod(tensor.shape)
        if size <= left and id(tensor) not in weights:
            weights[id(tensor)], left = zero_nonfinite(tensor.dequantize()), left - size
            release(tensor)
    for machine in machines:
        machine.keep(weights)
    sums: dict[tuple[str, ...], np.ndarray] = {}
    squares: SquareSums = {}
    run = partial(_run, part=part, text=text)
    for first in range(0, len(text.windows), _WINDOWS):
        group = range(first, min(first + _WINDOWS, len(text.windows)))
        inputs: dict[int, LayerInputs] = {}
        for of_machine in pool.map(run, machines, [group[t :: len(machines)] for t in range(len(machines))]):
            inputs |= of_machine
        for i in group:
            for matrix, (count, total) in inputs[i].squares.items():
                before = squares.get(matrix, (0, np.float32(0)))
                squares[matrix] = before[0] + count, before[1] + total
        for number, (products, _) in enumerate(inputs[first].products):
            matrices = tuple(names[id(op.weight)] for op in products if id(op.weight) in names)
            if matrices:
                rows = [inputs[i].products[number][1] for i in group]
                width = rows[0].shape[1]
                total = sums.setdefault(matrices, np.zeros((width, width), np.float32))
                for _ in pool.map(partial(_add, total, rows), *zip(*_tiles(width), strict=True)):
                    pass
    weights.clear()
    for machine in machines:
        machine.buffers.clear()
    experts = [h for op in part if isinstance(op, ops.MoE) for h in _of_experts(op, squares, names)]
    for op in part:
        if isinstance(op, ops.Embed):
            release(op.table)
    n = text.windows.size
    return [*(FullHessian(matrices, _mean(total, n)) for matrices, total in sums.items()), *experts]


def _run(
    machine: CalibrationMachine, numbers: Sequence[int], part: Sequence[ops.Op], text: _Text
) -> dict[int, LayerInputs]:
    """Run the windows with these `numbers` through a layer; the inputs of its matrices, by window."""
    inputs = {}
    for i in numbers:
        inputs[i] = machine.run_layer(part, text.windows[i], text.live[i])
        text.live[i] = {name: machine.buffers[name] for name in text.needed & set(machine.buffers)}
    return inputs


def _of_experts(op: ops.MoE, squares: SquareSums, names: Mapping[int, str]) -> Iterator[DiagonalHessian]:
    """The diagonal Hessians of a layer's experts; `_PRIOR_ROWS` smooths those of experts with few rows."""
    for stack in (op.gate, op.up, op.down):
        if not stack or id(stack[0]) not in names:
            continue
        of_expert = [squares.get(id(matrix), (0, np.float32(0))) for matrix in stack]
        counts = np.array([[count] for count, _ in of_expert], np.float32)
        sums = np.stack([np.broadcast_to(total, stack[0].shape[1:]) for _, total in of_expert])
        mean = sums.sum(axis=0) / max(1.0, float(counts.sum()))
        yield DiagonalHessian(names[id(stack[0])], (sums + _PRIOR_ROWS * mean) / (counts + _PRIOR_ROWS))


def _tiles(width: int) -> list[tuple[slice, slice]]:
    """Rows and columns of the tiles that cover the upper triangle of a Hessian."""
    cuts = [slice(a, min(a + _TILE, width)) for a in range(0, width, _TILE)]
    return [(cuts[i], cuts[j]) for i in range(len(cuts)) for j in range(i, len(cuts))]


def _add(total: np.ndarray, xs: Sequence[np.ndarray], rows: slice, columns: slice) -> None:
    """total += xᵀx in one tile. NumPy computes only half of a tile on the diagonal."""
    tile = xs[0][:, rows].T @ xs[0][:, columns]
    for x in xs[1:]:
        tile += x[:, rows].T @ x[:, columns]
    total[rows, columns] += tile


def _mean(total: np.ndarray, n: int) -> np.ndarray:
    """Mirror the upper triangle of a sum over n rows, and divide by n, in place."""
    for a in range(0, len(total), _TILE):
        total[a + _TILE :, a : a + _TILE] = total[a : a + _TILE, a + _TILE :].T
    total /= n
    return total
