"""Sensitivity: the divergence of a model's predictions for each weight of a matrix that is rounded to Q4_0.

By the linearity theorem of Malinovskii et al. 2024 ("Pushing the Limits of Large Language Model Quantization
via the Linearity Theorem") the divergence of a quantised model is about the sum of the divergences that
its matrices cause one by one, each proportional to the squared error. So the matrices of one kind (the query
projections, say) in one third of the layers are rounded to Q4_0 while all others stay as they are, and the
model is run over the text again, from the first of these layers on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...quant.block import QTensor
from ...quant.formats import FORMATS
from ...quant.rounding.encode import encode
from .. import ops
from .machine import CalibrationMachine, Release, live_buffers, share_caches

_PARTS = 3  # into which the layers are divided
_FORMAT = FORMATS["Q4_0"]
_ROWS = 64  # of logits that are compared at a time


@dataclass(frozen=True)
class MatrixGroup:
    """Matrices that are rounded together: names, `id`s of their tensors, and the first part that has them."""

    names: tuple[str, ...]
    tensors: frozenset[int]
    n_weights: int
    part: int


class RoundingMachine(CalibrationMachine):
    """Runs a program with the matrices whose `id` is in `rounded` rounded to Q4_0."""

    rounded: frozenset[int] = frozenset()

    def run(self, part: Sequence[ops.Op], tokens: np.ndarray, live: Mapping[str, np.ndarray]) -> None:
        """Run `part` over a window, int32 [context], with the buffers `live`; logits for its second half."""
        self.begin(tokens, live, logits_indices=np.arange(len(tokens) // 2, len(tokens), dtype=np.int32))
        for op in part:
            self._run(op)
        self.states.end(self._batch)

    def embed(self, op: ops.Embed) -> None:
        super().embed(op)
        if id(op.table) in self.rounded:
            self.buffers[op.out.name] = _round_trip(self.buffers[op.out.name])

    def _dequantized(self, tensor: QTensor) -> Iterator[tuple[int, np.ndarray]]:
        for start, rows in super()._dequantized(tensor):
            yield start, _round_trip(rows) if id(tensor) in self.rounded else rows


def sensitivities(
    program: ops.Program,
    stacks: Mapping[str, Sequence[QTensor]],
    windows: np.ndarray,
    release: Release,
    progress: Callable[[int, int], None],
) -> dict[str, float]:
    """The sensitivity of each matrix in `stacks`, by name, in nats per token and weight.

    It is the mean KL divergence over the second halves of the windows that rounding all matrices of its group
    to Q4_0 causes, divided by the weights of the group.

    `stacks` are the matrices by name: one, or one for each expert. `windows` is the text, int32 [n, context];
    windows run in parallel. `progress` gets the number of groups that are done, and of all.
    """
    parts = _parts(program)
    groups = _groups(parts, stacks)
    machines = [RoundingMachine(program, windows.shape[1], release) for _ in windows]
    live: list[list[dict[str, np.ndarray]]] = [[{}] for _ in windows]
    result: dict[str, float] = {}

    def base(i: int) -> np.ndarray:
        for k, part in enumerate(parts):
            machines[i].run(part, windows[i], live[i][k])
            if k + 1 < len(parts):
                needed = live_buffers([op for later in parts[k + 1 :] for op in later])
                buffers = machines[i].buffers
                live[i].append({name: buffers[name] for name in needed & set(buffers)})
        return machines[i].buffers[program.logits.name]

    def divergence(i: int, group: MatrixGroup) -> float:
        machines[i].rounded = group.tensors
        rest = [op for part in parts[group.part :] for op in part]
        machines[i].run(rest, windows[i], live[i][group.part])
        return _divergence(baseline[i], machines[i].buffers[program.logits.name])

    with ThreadPoolExecutor(len(windows)) as pool:
        baseline = list(pool.map(base, range(len(windows))))
        for done, group in enumerate(groups):
            progress(done, len(groups))
            divergences = list(pool.map(divergence, range(len(windows)), [group] * len(windows)))
            result |= dict.fromkeys(group.names, float(np.mean(divergences)) / group.n_weights)
    return result


def _parts(program: ops.Program) -> list[tuple[ops.Op, ...]]:
    """The program in _PARTS parts of equally many layers; in one part if `share_caches`."""
    starts = program.layers[:-1]
    n = 1 if share_caches(program) else min(_PARTS, max(1, len(starts)))
    cuts = [0, *(starts[len(starts) * k // n] for k in range(1, n)), len(program.ops)]
    return [program.ops[a:b] for a, b in pairwise(cuts)]


def _groups(parts: Sequence[Sequence[ops.Op]], stacks: Mapping[str, Sequence[QTensor]]) -> list[MatrixGroup]:
    """Matrices grouped by the part that has them and by name without the layer's number."""
    part_of: dict[int, int] = {}
    for k, part in enumerate(parts):
        for op in part:
            for tensor in _matrices(op):
                part_of.setdefault(id(tensor), k)
    names_of: dict[tuple[str, int], list[str]] = {}
    for name, stack in stacks.items():
        if id(stack[0]) in part_of and stack[0].shape[1] % _FORMAT.block_size == 0:
            kind = ".".join(piece for piece in name.split(".") if not piece.isdigit())
            names_of.setdefault((kind, part_of[id(stack[0])]), []).append(name)
    groups = []
    for (_, first), names in names_of.items():
        tensors = [tensor for name in names for tensor in stacks[name]]
        weights = sum(tensor.shape[0] * tensor.shape[1] for tensor in tensors)
        groups.append(MatrixGroup(tuple(names), frozenset(map(id, tensors)), weights, first))
    return groups


def _matrices(op: ops.Op) -> Sequence[QTensor]:
    """The matrices that an op reads."""
    match op:
        case ops.MatMul():
            return (op.weight,)
        case ops.Embed():
            return (op.table,)
        case ops.MoE():
            return (*op.gate, *op.up, *op.down)
    return ()


def _round_trip(rows: np.ndarray) -> np.ndarray:
    """float32 [rows, width] rounded to Q4_0 and dequantised."""
    blocks = encode(rows, _FORMAT, threads=1, zero_nonfinite=True)
    return _FORMAT.dequantize(blocks.reshape(-1, _FORMAT.type_size)).reshape(rows.shape)


def _divergence(baseline: np.ndarray, logits: np.ndarray) -> float:
    """The mean over rows of KL(softmax(baseline) ‖ softmax(logits)), in nats."""
    total = 0.0
    for start in range(0, len(logits), _ROWS):
        p, q = (_log_softmax(x[start : start + _ROWS]) for x in (baseline, logits))
        total += float((np.exp(p) * (p - q)).sum())
    return total / len(logits)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
