"""Rounds the rows of a step up, so that a server's steps, whose numbers of rows change, have few shapes: each
shape is lowered and captured in a graph at its first step.

The rows that are added repeat the last one: they write the same keys and values to the same place of the
cache, and nobody asks for their logits. Kernels for the rows of one prompt, which count positions on from the
first one, see nothing behind the last row's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .. import ops
from ..engine.cache import Batch
from .lowering.base import DECODE_ROWS

PROMPT_ROWS = 256  # beside decode rows in a usual step


def allows_padding(program: ops.Program) -> bool:
    """Whether rows may be repeated: they must not move a state on, and come from the batch alone and go
    nowhere else.
    """
    return not (program.state_layers or program.boundary_in or program.boundary_out)


def padded(batch: Batch, max_rows: int, max_logits: int) -> Batch:
    """A batch whose rows and logits are rounded up within the limits."""
    n, m = len(batch.tokens), len(batch.logits_indices)
    more = min(rounded(n), max_rows) - n
    if m == n:  # a step of decoding: all rows have logits, and so have those that are added
        more = min(more, max_logits - m)
        logits = np.arange(n + more, dtype=np.int32)
    else:
        logits = _repeated(batch.logits_indices, min(_rounded_logits(m), max_logits, n + more) - m)
    if not more and len(logits) == m:
        return batch
    return replace(
        batch,
        tokens=_repeated(batch.tokens, more),
        sequences=_repeated(batch.sequences, more),
        positions=_repeated(batch.positions, more),
        logits_indices=logits,
        lengths=None if batch.lengths is None else _repeated(batch.lengths, more),
        types=None if batch.types is None else _repeated(batch.types, more),
    )


def rounded(n: int) -> int:
    """`n` rounded up: to a power of two up to 16, then to multiples of 16 up to 128, of 32 up to 256, of
    64."""
    if n <= DECODE_ROWS:
        return 1 << (n - 1).bit_length()
    step = 16 if n <= 128 else 32 if n <= 256 else 64
    return -(-n // step) * step


def _rounded_logits(m: int) -> int:
    """The number of rows with logits in a step in which not all rows have them. It is rounded more than that
    of rows: the output matrix is read once, for however many."""
    if m <= 1:
        return m
    return DECODE_ROWS if m <= DECODE_ROWS else -(-m // 64) * 64


def usual_steps(max_sequences: int, max_rows: int) -> Iterator[tuple[int, int, bool]]:
    """Rows and rows with logits, rounded, of steps of up to `max_sequences` sequences, and whether all rows
    have logits: steps of decoding, and those with some rows of prompts as well."""
    sizes = sorted({rounded(n) for n in range(1, max_sequences + PROMPT_ROWS + 1)})
    for n in sizes:
        if n <= rounded(max_sequences):
            yield n, n, True
    for n in sizes:
        for m in dict.fromkeys((DECODE_ROWS, _rounded_logits(max_sequences))):
            if 2 * DECODE_ROWS < n <= max_rows and m <= n:
                yield n, m, False


def _repeated(values: np.ndarray, more: int) -> np.ndarray:
    """`values` with the last one `more` times more."""
    return np.concatenate([values, np.repeat(values[-1:], more)])
