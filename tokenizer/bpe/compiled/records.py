"""Records that the compiled encoder and its kernel share: int64 fields, most of them addresses of arrays."""

from __future__ import annotations

import numpy as np

MAX_PART_BYTES = 96  # of a chunk that the kernel encodes; longer ones are left to Python
MAX_ITEMS = 8  # of an alternative of a pattern, see patterns.py
NO_RANK = np.int64((1 << 63) - 1)
CUT_BITS = 24
# Operations, the third argument of the kernel.
ENCODE, MERGE, FIND, ENTER_PIECES, ENTER_MERGES, ENTER_MORE = range(6)


def _record(*fields: str) -> np.dtype:
    return np.dtype([(field, np.int64) for field in fields])


# A vocabulary. A text's number is its hash, as in `batch.Entries`.
VOCABULARY = _record(
    "keys",  # uint64 [slots]: numbers of texts by a hash of them, 0 where there is none
    "key_ids",  # int32 [slots]
    "key_shift",  # from the hash to its slot
    "key_mask",
    "values",  # uint64 [256], by byte, and
    "base",  # of texts' numbers
    "numbers",  # uint64 [n_ids]
    "powers",  # uint64 [n_ids]: base to the power of the size
    "sizes",  # int32 [n_ids], bytes
    "ranks",  # int64 [n_ids]: of the pair that makes it, NO_RANK for none
    "cuts",  # int32 [n_ids]: where that pair is cut, -1: anywhere
    "more_keys",  # uint64 [slots]: further pairs, id << CUT_BITS | cut, 0 where there is none
    "more_ranks",  # int64 [slots]
    "more_shift",
    "more_mask",
    "whole",  # whether a word that is an entry is not merged
    "symbols",  # int32 [256]: the ids of bytes, -1 for those that have none
    "space",  # the id of U+2581 where texts are cut in front of that, else -1
    "joins",  # uint8 [256]: whether a piece has U+2581 behind this byte
    "classes",  # uint64 [128]: of which classes an ASCII character is, a bit each
    "program",  # int32: the patterns, see patterns.py
    # The table of chunks that were encoded before:
    "seed",
    "slots",  # int32 [slot_mask + 1]: places in `parts` plus one, by hash
    "slot_mask",
    "parts",  # PART [most_parts]
    "n_parts",
    "most_parts",
    "bytes",  # uint8 [most_bytes]: the chunks' texts
    "n_bytes",
    "most_bytes",
    "ids",  # int32 [most_ids]: the chunks' ids
    "n_ids",
    "most_ids",
)
PART = _record("hash", "at", "size", "ids_at", "n_ids")
# A call. Offsets are those of bytes in `text`.
CALL = _record(
    "text",
    "items",  # int64 [n_items, 2]: begin and end of a text, or -1 and the id of a token
    "n_items",
    "out",  # int32: the ids
    "n_out",
    "left",  # int64 [n_left, 3]: chunks left to Python, as (place in out, begin, end)
    "n_left",
    "scratch",  # SCRATCH
)
# Words to be merged.
MERGING = _record(
    "symbols",  # int64: of all words, one after the other
    "sizes",  # int64 [n]: how many each has
    "fit",  # uint8 [n]: whether it is to be merged; it has 1 to MAX_PART_BYTES symbols then
    "n",
    "out",  # int32: the ids
    "counts",  # int64 [n]: how many each became
    "scratch",  # SCRATCH
)
# Pieces of a vocabulary or merges "a b" to be entered into one, or texts to be found in it.
ENTERING = _record(
    "raw",  # uint8
    "starts",  # int64 [n]
    "stops",  # int64 [n]
    "ids",  # int64 [n], of pieces; -1: not to be entered; or what was found
    "n",
    "more",  # int64 [n, 2]: merges that make what another one makes, as (key, rank)
    "n_more",
    "failed",  # something does not fit
)
SCRATCH = np.dtype(
    [
        ("marks", np.uint8, MAX_PART_BYTES + 8),  # where words begin
        ("symbols", np.int32, MAX_PART_BYTES + 8),
        ("made", np.int32, MAX_PART_BYTES + 8),
        ("ranks", np.int64, MAX_PART_BYTES + 8),
        ("begins", np.int64, MAX_ITEMS),
        ("counts", np.int64, MAX_ITEMS),
    ]
)
