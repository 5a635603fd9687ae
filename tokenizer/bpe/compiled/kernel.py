"""The entry point of the compiled encoder: text to ids where it is ASCII, and what that needs to know.

Only the process that compiles it imports this module, and Numba with it. `records.py` lists the fields of the
records, `encoder.py` fills them. The NumPy twin is `batch.py`, the pure Python one `merging.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import (
    call_at,
    entering_at,
    helper,
    i64,
    merging_at,
    put_i32,
    put_i64,
    scratch_at,
    u8,
    vocabulary_at,
)
from .merge import merge
from .records import ENTER_MERGES, ENTER_MORE, ENTER_PIECES, FIND, MERGE
from .tables import enter_merges, enter_more, enter_pieces, find_texts
from .text import encode_items


@helper
def merge_words(v: Any, m: Any) -> None:
    s = scratch_at(m.scratch, 0)
    at = np.int64(0)
    n_out = np.int64(0)
    for word in range(m.n):
        size = i64(m.sizes, word)
        if u8(m.fit, word) != 0:
            for i in range(size):
                s.symbols[i] = i64(m.symbols, at + i)
            n = merge(v, s, size)
            for i in range(n):
                put_i32(m.out, n_out + i, s.symbols[i])
            put_i64(m.counts, word, n)
            n_out += n
        at += size


def tokenizer_kernel(arguments: int, step: int, operation: int) -> None:
    """Do `operation` with the VOCABULARY at `arguments` and the record at `step`."""
    v = vocabulary_at(arguments, 0)
    if operation == MERGE:
        merge_words(v, merging_at(step, 0))
    elif operation == FIND:
        find_texts(v, entering_at(step, 0))
    elif operation == ENTER_PIECES:
        enter_pieces(v, entering_at(step, 0))
    elif operation == ENTER_MERGES:
        enter_merges(v, entering_at(step, 0))
    elif operation == ENTER_MORE:
        enter_more(v, entering_at(step, 0))
    else:
        encode_items(v, call_at(step, 0))
