"""What matrices multiply: second moments of their inputs while a model reads a text, layer by layer.

The text runs through the reference machine in windows, all of them through one layer before the next, so that
only one layer's weights and moments are in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from .. import ops
from .machine import CalibrationMachine, Reads, Release, Squares, finite, live_buffers, segments

_AT_ONCE = 2  # windows whose activations are held
_KEPT_BYTES = 1 << 28  # of a layer's matrices in float32; others are made anew for each window
_COLUMNS = 512  # and rows of moments that are added to at a time
_PRIOR = 16  # rows that an expert is taken to have read besides, of all experts' mean


@dataclass(frozen=True)
class FullHessian:
    """float32 [width, width], mean xxᵀ of the rows x that went into the matrices called `names`."""

    names: tuple[str, ...]
    values: np.ndarray


@dataclass(frozen=True)
class DiagonalHessian:
    """float32 [experts, width], mean x² of the rows that went into each matrix of the stack called `name`."""

    name: str
    values: np.ndarray


Layer = list[FullHessian | DiagonalHessian]


def moments(
    program: ops.Program,
    names: Mapping[int, str],
    windows: np.ndarray,
    threads: int = 1,
    release: Release = lambda tensor: None,
) -> Iterator[Layer]:
    """What is found out about each layer's matrices in turn, and last about the output's.

    `names` are those of tensors by their `id`; `windows` int32 [n, context]. Nothing of a layer is held here
    once it is handed out. `release` is told of tensors that have been read. `threads` change no result.
    """
    parts = segments(program)
    machines = [CalibrationMachine(program, windows.shape[1], release) for _ in range(threads)]
    held: list[dict[str, np.ndarray]] = [{} for _ in windows]
    with ThreadPoolExecutor(threads) as pool:
        for k, part in enumerate(parts):
            needed = live_buffers([op for other in parts[k + 1 :] for op in other])
            yield _layer(part, machines, pool, names, windows, held, needed, release)


def _layer(
    part: Sequence[ops.Op],
    machines: Sequence[CalibrationMachine],
    pool: ThreadPoolExecutor,
    names: Mapping[int, str],
    windows: np.ndarray,
    held: list[dict[str, np.ndarray]],
    needed: set[str],
    release: Release,
) -> Layer:
    """Take all windows through a layer; `held`, their buffers, become those `needed` from there on."""
    logits = machines[0].program.logits.name
    tensors = [op.weight for op in part if isinstance(op, ops.MatMul) and op.out.name != logits]
    weights: dict[int, np.ndarray] = {}
    left = _KEPT_BYTES
    for tensor in tensors:
        size = 4 * math.prod(tensor.shape)
        if size <= left and id(tensor) not in weights:
            weights[id(tensor)], left = finite(tensor.dequantize()), left - size
            release(tensor)
    for machine in machines:
        machine.keep(weights)
    sums: dict[tuple[str, ...], np.ndarray] = {}
    squares: Squares = {}
    run = partial(_run, part=part, windows=windows, held=held, needed=needed)
    for first in range(0, len(windows), _AT_ONCE):
        some = range(first, min(first + _AT_ONCE, len(windows)))
        reads: dict[int, Reads] = {}
        for read in pool.map(run, machines, [some[t :: len(machines)] for t in range(len(machines))]):
            reads |= read
        for i in some:
            for matrix, (count, total) in reads[i].squares.items():
                before = squares.get(matrix, (0, np.float32(0)))
                squares[matrix] = before[0] + count, before[1] + total
        for number, (group, _) in enumerate(reads[first].products):
            called = tuple(names[id(op.weight)] for op in group if id(op.weight) in names)
            if called:
                rows = [reads[i].products[number][1] for i in some]
                width = rows[0].shape[1]
                total = sums.setdefault(called, np.zeros((width, width), np.float32))
                for _ in pool.map(partial(_add, total, rows), *zip(*_tiles(width), strict=True)):
                    pass
    weights.clear()
    for machine in machines:
        machine.buffers.clear()
    experts = [found for op in part if isinstance(op, ops.MoE) for found in _of_experts(op, squares, names)]
    for op in part:
        if isinstance(op, ops.Embed):
            release(op.table)
    return [*(FullHessian(called, _whole(total, windows.size)) for called, total in sums.items()), *experts]


def _run(
    machine: CalibrationMachine,
    share: Sequence[int],
    part: Sequence[ops.Op],
    windows: np.ndarray,
    held: list[dict[str, np.ndarray]],
    needed: set[str],
) -> dict[int, Reads]:
    """Take some windows through a layer."""
    read = {}
    for i in share:
        read[i] = machine.segment(part, windows[i], held[i])
        held[i] = {name: machine.buffers[name] for name in needed & set(machine.buffers)}
    return read


def _of_experts(op: ops.MoE, squares: Squares, names: Mapping[int, str]) -> Iterator[DiagonalHessian]:
    """What the experts of a layer have read. Those that read little are taken to be like the others."""
    for stack in (op.gate, op.up, op.down):
        if not stack or id(stack[0]) not in names:
            continue
        found = [squares.get(id(matrix), (0, np.float32(0))) for matrix in stack]
        counts = np.array([[count] for count, _ in found], np.float32)
        sums = np.stack([np.broadcast_to(total, stack[0].shape[1:]) for _, total in found])
        mean = sums.sum(axis=0) / max(1.0, float(counts.sum()))
        yield DiagonalHessian(names[id(stack[0])], (sums + _PRIOR * mean) / (counts + _PRIOR))


def _tiles(width: int) -> list[tuple[slice, slice]]:
    """Rows and columns of the parts that the upper half of moments is made in."""
    cuts = [slice(a, min(a + _COLUMNS, width)) for a in range(0, width, _COLUMNS)]
    return [(cuts[i], cuts[j]) for i in range(len(cuts)) for j in range(i, len(cuts))]


def _add(total: np.ndarray, xs: Sequence[np.ndarray], rows: slice, columns: slice) -> None:
    """total += xᵀx in one tile. Of those on the diagonal NumPy makes one half only."""
    tile = xs[0][:, rows].T @ xs[0][:, columns]
    for x in xs[1:]:
        tile += x[:, rows].T @ x[:, columns]
    total[rows, columns] += tile


def _whole(total: np.ndarray, n: int) -> np.ndarray:
    for a in range(0, len(total), _COLUMNS):
        total[a + _COLUMNS :, a : a + _COLUMNS] = total[a : a + _COLUMNS, a + _COLUMNS :].T
    total /= n
    return total
