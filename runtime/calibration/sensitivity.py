"""How much a model's predictions suffer from a matrix being rounded, measured kind by kind.

By the linearity theorem of Malinovskii et al. 2024 ("Pushing the Limits of Large Language Model Quantization
via the Linearity Theorem") the divergence of a quantised model is about the sum of what each matrix causes by
itself, which grows with its squared error. So the matrices of one kind (queries, say) in one third of the
layers are rounded to Q4_0 while all others stay as they are, and the text is read again from there on.
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

_PARTS = 3  # of the layers
_FORMAT = FORMATS["Q4_0"]
_ROWS = 64  # of logits that are compared at once


@dataclass(frozen=True)
class Kind:
    """Matrices that are rounded together: their names, their tensors' `id`s, the first part that has them."""

    names: tuple[str, ...]
    tensors: frozenset[int]
    n_weights: int
    part: int


class RoundingMachine(CalibrationMachine):
    """Runs a program in which the matrices whose `id` is in `rounded` have been rounded."""

    rounded: frozenset[int] = frozenset()

    def read(self, part: Sequence[ops.Op], tokens: np.ndarray, live: Mapping[str, np.ndarray]) -> None:
        """Run `part` over a window whose buffers are `live`; logits are those of its second half."""
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
    """For each name of `stacks`: the mean divergence, in nats a token of the windows' second halves, that
    rounding to Q4_0 causes by each of the weights of its kind.

    `stacks` are the matrices that have a name: one, or one for each expert. `windows` int32
    [n, context] are read at the same time. `progress` is told of kinds done, and how many there are.
    """
    parts = _parts(program)
    kinds = _kinds(parts, stacks)
    machines = [RoundingMachine(program, windows.shape[1], release) for _ in windows]
    live: list[list[dict[str, np.ndarray]]] = [[{}] for _ in windows]
    found: dict[str, float] = {}

    def base(i: int) -> np.ndarray:
        for k, part in enumerate(parts):
            machines[i].read(part, windows[i], live[i][k])
            if k + 1 < len(parts):
                needed = live_buffers([op for later in parts[k + 1 :] for op in later])
                held = machines[i].buffers
                live[i].append({name: held[name] for name in needed & set(held)})
        return machines[i].buffers[program.logits.name]

    def divergence(i: int, kind: Kind) -> float:
        machines[i].rounded = kind.tensors
        rest = [op for part in parts[kind.part :] for op in part]
        machines[i].read(rest, windows[i], live[i][kind.part])
        return _divergence(baseline[i], machines[i].buffers[program.logits.name])

    with ThreadPoolExecutor(len(windows)) as pool:
        baseline = list(pool.map(base, range(len(windows))))
        for done, kind in enumerate(kinds):
            progress(done, len(kinds))
            each = list(pool.map(divergence, range(len(windows)), [kind] * len(windows)))
            found |= dict.fromkeys(kind.names, float(np.mean(each)) / kind.n_weights)
    return found


def _parts(program: ops.Program) -> list[tuple[ops.Op, ...]]:
    """The program in a few parts of as many layers; in one where layers read what others have cached."""
    starts = program.layers[:-1]
    n = 1 if share_caches(program) else min(_PARTS, max(1, len(starts)))
    cuts = [0, *(starts[len(starts) * k // n] for k in range(1, n)), len(program.ops)]
    return [program.ops[a:b] for a, b in pairwise(cuts)]


def _kinds(parts: Sequence[Sequence[ops.Op]], stacks: Mapping[str, Sequence[QTensor]]) -> list[Kind]:
    place: dict[int, int] = {}
    for k, part in enumerate(parts):
        for op in part:
            for tensor in _matrices(op):
                place.setdefault(id(tensor), k)
    groups: dict[tuple[str, int], list[str]] = {}
    for name, stack in stacks.items():
        if id(stack[0]) in place and stack[0].shape[1] % _FORMAT.block_size == 0:
            kind = ".".join(piece for piece in name.split(".") if not piece.isdigit())
            groups.setdefault((kind, place[id(stack[0])]), []).append(name)
    kinds = []
    for (_, first), names in groups.items():
        tensors = [tensor for name in names for tensor in stacks[name]]
        weights = sum(tensor.shape[0] * tensor.shape[1] for tensor in tensors)
        kinds.append(Kind(tuple(names), frozenset(map(id, tensors)), weights, first))
    return kinds


def _matrices(op: ops.Op) -> Sequence[QTensor]:
    match op:
        case ops.MatMul():
            return (op.weight,)
        case ops.Embed():
            return (op.table,)
        case ops.MoE():
            return (*op.gate, *op.up, *op.down)
    return ()


def _round_trip(rows: np.ndarray) -> np.ndarray:
    blocks = encode(rows, _FORMAT, threads=1, zero_nonfinite=True)
    return _FORMAT.dequantize(blocks.reshape(-1, _FORMAT.type_size)).reshape(rows.shape)


def _divergence(baseline: np.ndarray, logits: np.ndarray) -> float:
    """The mean of KL(baseline ‖ logits) over rows."""
    total = 0.0
    for start in range(0, len(logits), _ROWS):
        p, q = (_log_softmax(each[start : start + _ROWS]) for each in (baseline, logits))
        total += float((np.exp(p) * (p - q)).sum())
    return total / len(logits)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
