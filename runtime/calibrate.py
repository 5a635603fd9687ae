"""What matrices multiply: second moments of their inputs while a model reads a text, layer by layer.

The text runs through the reference machine in windows, all of them through one layer before the next, so that
only one layer's weights and moments are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise

import numpy as np

from ..quant.block import QTensor
from . import ops
from .buffer import Buffer
from .cache import PAGE_SIZE, Batch, PageTable
from .reference import ReferenceMachine

_AT_ONCE = 4  # windows whose activations are held
_COLUMNS = 1024  # of moments that are added to at a time


@dataclass(frozen=True)
class Moments:
    """float32 [width, width], mean xxᵀ of the rows that went into the matrices called `names`."""

    names: tuple[str, ...]
    values: np.ndarray


class _Machine(ReferenceMachine):
    """Runs part of a program, and keeps what products read."""

    def segment(
        self, part: Sequence[ops.Op], tokens: np.ndarray, table: PageTable, live: dict[str, np.ndarray]
    ) -> list[tuple[list[ops.MatMul], np.ndarray]]:
        """Run `part` over a window whose buffers are `live`; the products by what they read."""
        n = len(tokens)
        rows = np.arange(n, dtype=np.int32)
        self._batch, self._table = Batch(tokens.astype(np.int32), np.zeros(n, np.int32), rows, rows), table
        self.buffers = dict(live)
        self.states.begin(self._batch)
        read: list[tuple[list[ops.MatMul], np.ndarray]] = []
        for op in part:
            if isinstance(op, ops.MatMul):
                x = self.buffers[op.x.name]
                group = next((group for group, other in read if other is x), None)
                if group is None:
                    read.append(([op], x))
                else:
                    group.append(op)
                if op.out.name == self.program.logits.name:
                    break  # nobody asks for logits
            self._run(op)
        self.states.end(self._batch)
        return read

    def attend(self, op: ops.Attend) -> None:
        """As the reference does for a sequence from its beginning, head by head, which is faster."""
        if _share_caches(self.program) or op.v == op.k or op.sinks is not None:
            super().attend(op)
            return
        n = len(self._batch.tokens)
        q = self.buffers[op.q.name].reshape(n, op.heads, -1)
        k, v = (self.buffers[b.name].reshape(n, op.kv_heads, -1) for b in (op.k, op.v))
        at = np.arange(n)
        hidden = at > at[:, None]
        if op.window:
            hidden |= at <= at[:, None] - op.window
        mask = np.where(hidden, np.float32(-np.inf), np.float32(0))
        out = np.empty((n, op.heads, op.value_dim), np.float32)
        for h in range(op.heads):
            g = h * op.kv_heads // op.heads
            scores = (np.ascontiguousarray(q[:, h]) * np.float32(op.scale)) @ np.ascontiguousarray(k[:, g]).T
            if op.softcap:
                scores = np.float32(op.softcap) * np.tanh(scores / np.float32(op.softcap))
            scores += mask
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=1, keepdims=True)
            out[:, h] = scores @ np.ascontiguousarray(v[:, g])
        self.buffers[op.out.name] = out.reshape(n, -1)

    def keep(self, weights: dict[int, np.ndarray]) -> None:
        self._kept = weights


def moments(
    program: ops.Program, names: Mapping[int, str], windows: np.ndarray, threads: int = 1
) -> Iterator[list[Moments]]:
    """The moments of each layer's matrices in turn, and last of the output's.

    `names` are those of tensors by their `id`; `windows` int32 [n, context]. The moments of a layer are only
    held until the next is asked for. Results do not depend on `threads`.
    """
    parts = _segments(program)
    n_pages = -(-windows.shape[1] // PAGE_SIZE)
    table = PageTable(n_pages)
    table.extend(0, windows.shape[1])
    machines = [_Machine(program, n_pages, keep_bytes=0) for _ in range(threads)]
    held: list[dict[str, np.ndarray]] = [{} for _ in windows]
    with ThreadPoolExecutor(threads) as pool:
        for k, part in enumerate(parts):
            later = [op for other in parts[k + 1 :] for op in other]
            needed = _live(later)
            weights = {
                id(op.weight): op.weight.dequantize()
                for op in part
                if isinstance(op, ops.MatMul) and op.out.name != program.logits.name
            }
            for machine in machines:
                machine.keep(weights)
            sums: dict[tuple[str, ...], np.ndarray] = {}
            for first in range(0, len(windows), _AT_ONCE):
                some = range(first, min(first + _AT_ONCE, len(windows)))
                shares = [list(some)[t::threads] for t in range(threads)]

                run = partial(_run, part=part, table=table, windows=windows, held=held, needed=needed)
                reads: dict[int, list[tuple[list[ops.MatMul], np.ndarray]]] = {}
                for read in pool.map(run, machines, shares):
                    reads |= read
                for i in some:
                    for group, x in reads[i]:
                        called = tuple(names[id(op.weight)] for op in group if id(op.weight) in names)
                        if called:
                            _add(sums.setdefault(called, np.zeros((x.shape[1],) * 2, np.float32)), x)
            weights.clear()
            for machine in machines:
                machine.buffers.clear()
            yield [Moments(called, _whole(total, windows.size)) for called, total in sums.items()]


def _run(
    machine: _Machine,
    share: list[int],
    part: Sequence[ops.Op],
    table: PageTable,
    windows: np.ndarray,
    held: list[dict[str, np.ndarray]],
    needed: set[str],
) -> dict[int, list[tuple[list[ops.MatMul], np.ndarray]]]:
    """Take some windows through a layer; `held`, their buffers, become those `needed` from there on."""
    read = {}
    for i in share:
        read[i] = machine.segment(part, windows[i], table, held[i])
        held[i] = {name: machine.buffers[name] for name in needed & set(machine.buffers)}
    return read


def _segments(program: ops.Program) -> list[tuple[ops.Op, ...]]:
    """The program layer by layer; in one piece where layers read what others have cached."""
    cuts = [0, *program.layers[1:], len(program.ops)]
    if not program.layers or _share_caches(program):
        cuts = [0, len(program.ops)]
    return [program.ops[a:b] for a, b in pairwise(cuts)]


def _share_caches(program: ops.Program) -> bool:
    """Whether layers read keys and values that others have cached."""
    return any(isinstance(op, ops.Attend) and not op.append for op in program.ops)


def _live(later: Sequence[ops.Op]) -> set[str]:
    """The buffers that ops read before they write them."""
    read, written = set[str](), set[str]()
    for op in later:
        keeps = isinstance(op, ops.Add) or (isinstance(op, ops.MatMul) and op.accumulate)
        found = [(f.name, b) for f in fields(op) for b in _buffers(getattr(op, f.name))]
        read |= {b.name for name, b in found if (name != "out" or keeps) and b.name not in written}
        written |= {b.name for name, b in found if name == "out"}
    return read


def _buffers(value: object) -> list[Buffer]:
    values = value if isinstance(value, tuple) else (value,)
    return [b for b in values if isinstance(b, Buffer)]


def _add(total: np.ndarray, x: np.ndarray) -> None:
    """total += xᵀx, above the diagonal and a little below."""
    for a in range(0, len(total), _COLUMNS):
        total[a : a + _COLUMNS, a:] += x[:, a : a + _COLUMNS].T @ x[:, a:]


def _whole(total: np.ndarray, n: int) -> np.ndarray:
    for a in range(0, len(total), _COLUMNS):
        total[a + _COLUMNS :, a : a + _COLUMNS] = total[a : a + _COLUMNS, a + _COLUMNS :].T
    total /= n
    return total


def tensor_names(tensors: Mapping[str, QTensor]) -> dict[int, str]:
    """Names by the identity of what they name."""
    return {id(tensor): name for name, tensor in tensors.items()}
