"""Encoding by machine code: the arrays that the kernel (`kernel.py`) works on, and calls of it.

The caller passes the compiled kernel in; this package neither compiles nor stores machine code.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...pretokenize.metaspace import SPACE, PartsAtMetaspace
from ...pretokenize.pretokenize import BYTE_SYMBOLS, PartsAtSpaces, spell_bytes
from ...strings import NO_ID, Strings
from ..bpe import BPE, Tables
from .patterns import Program, program
from .records import (
    CALL,
    ENCODE,
    ENTER_MERGES,
    ENTER_MORE,
    ENTER_PIECES,
    ENTERING,
    FIND,
    MERGE,
    MERGING,
    NO_RANK,
    PART,
    SCRATCH,
    VOCABULARY,
)

EncodeKernel = Callable[
    [int, int, int], None
]  # address of VOCABULARY, address of a record, operation (records.py)

# Capacity of the table of chunks that were encoded before: chunks, their bytes, their ids.
_PARTS, _BYTES, _IDS = 1 << 16, 1 << 20, 1 << 19


def compiled_encoder(
    kernel: EncodeKernel, model: BPE, parts: PartsAtSpaces | PartsAtMetaspace
) -> CompiledEncoder | None:
    """A compiled encoder for a BPE model whose texts are first cut into chunks by `parts`.

    None if the vocabulary or the pre-tokenizer cannot be expressed in the kernel's tables.
    """
    tables = model.tables()
    if tables is None:
        return None
    spelled = model.byte_level
    if isinstance(parts, PartsAtMetaspace):
        cutting, joins = program(()), frozenset(map(ord, filter(str.isascii, parts.joins)))
    else:
        cutting, joins = program(parts.steps), None
        spelled = spelled or spell_bytes in parts.steps
    try:
        return CompiledEncoder(kernel, tables, spelled, cutting, joins) if cutting else None
    except ValueError:
        return None


def _point(record: np.ndarray, **arrays: np.ndarray) -> None:
    """Set fields of a record to the addresses of arrays; the caller keeps the arrays alive."""
    for name, array in arrays.items():
        record[name] = array.__array_interface__["data"][0]


class CompiledEncoder:
    """A vocabulary in arrays that the kernel reads. A lock lets one thread encode at a time."""

    def __init__(
        self,
        kernel: EncodeKernel,
        tables: Tables,
        spelled: bool,
        cutting: Program,
        joins: frozenset[int] | None,
    ) -> None:
        """`spelled`: pieces are spelled in GPT-2's byte symbols. `cutting` cuts chunks into words.

        With `joins`, a text is cut into chunks before U+2581, except after these bytes; without, at spaces.
        Raises ValueError for a vocabulary that the tables cannot express.
        """
        self._kernel = kernel
        self._lock = threading.Lock()
        self._arrays: dict[str, np.ndarray] = {}  # kept alive here, since the record has only their addresses
        self._v = np.zeros(1, VOCABULARY)
        self._enter_entries(tables, joins, cutting)
        self.byte_symbols = self._enter_symbols(spelled, joins).astype(np.int64)
        self._enter_ranks(tables)
        self._array("slots", np.zeros(4 * _PARTS, np.int32))
        self._array("parts", np.empty(_PARTS, PART))
        self._array("bytes", np.empty(_BYTES, np.uint8))
        self._array("ids", np.empty(_IDS, np.int32))
        self._set(slot_mask=4 * _PARTS - 1, most_parts=_PARTS, most_bytes=_BYTES, most_ids=_IDS)
        self._scratch = np.zeros(1, SCRATCH)
        self._call = np.zeros(1, CALL)
        self._call["scratch"] = self._scratch.ctypes.data

    def _enter_entries(self, tables: Tables, joins: frozenset[int] | None, cutting: Program) -> None:
        """The hash table of entries and the patterns. The hash has a secret base, so that nobody can choose
        entries that collide."""
        secret = np.frombuffer(os.urandom(8 * 258), np.uint64)
        base = int(secret[256]) | 1
        if base % 8 in (1, 7):  # with a base near ±1 the lowest bits would say little
            base ^= 2
        self._set(base=base, seed=int(secret[257]), whole=int(tables.whole))
        self._array("values", secret[:256] | np.uint64(1))
        self._table("key", "keys", "key_ids", np.int32, len(tables.texts))
        self._array("numbers", np.zeros(tables.n_ids, np.uint64))
        self._array("powers", np.zeros(tables.n_ids, np.uint64))
        self._array("sizes", np.zeros(tables.n_ids, np.int32))
        joined = np.zeros(256, np.uint8)
        joined[list(joins or ())] = 1
        self._array("joins", joined)
        self._array("classes", cutting.classes)
        self._array("program", cutting.table)
        self._enter(ENTER_PIECES, tables.texts, tables.ids)

    def _enter_symbols(self, spelled: bool, joins: frozenset[int] | None) -> np.ndarray:
        """The ids of single bytes, int32 [256]. ValueError if a space has none where it must have one."""
        symbols = np.full(256, NO_ID, np.int32)
        symbols[1:128] = self.find([*map(chr, range(1, 128))])
        if spelled:
            symbols[:] = self.find(BYTE_SYMBOLS)
        self._array("symbols", symbols)
        space = NO_ID if joins is None else self.find([SPACE])[0]
        if joins is not None and space == NO_ID:
            raise ValueError("no entry for a space")
        self._set(space=space)
        return symbols

    def _enter_ranks(self, tables: Tables) -> None:
        """The rank of the pair that makes each id, and where that pair is cut."""
        order, n_ids = tables.order, tables.n_ids
        ranks = np.full(n_ids, NO_RANK)
        if isinstance(order, np.ndarray):
            ranks[: len(order)] = order[:n_ids]
        self._array("ranks", ranks)
        cuts = np.full(n_ids, -1 if isinstance(order, np.ndarray) else 0, np.int32)
        self._array("cuts", cuts)
        if tables.in_order:
            first, at = tables.in_order
            ranks[first : first + len(at)], cuts[first : first + len(at)] = np.arange(len(at)), at
        elif isinstance(order, Strings):
            self._enter(ENTER_MERGES, order)

    def _set(self, **fields: int) -> None:
        for name, value in fields.items():
            self._v[name] = value if value < 1 << 63 else value - (1 << 64)

    def _array(self, name: str, array: np.ndarray) -> None:
        self._arrays[name] = array = np.ascontiguousarray(array)
        self._v[name] = array.ctypes.data

    def _table(self, prefix: str, keys: str, values: str, dtype: Any, n: int) -> None:
        """Allocate a hash table for n keys, at most half full."""
        bits = max(8, (2 * n).bit_length())
        self._array(keys, np.zeros(1 << bits, np.uint64))
        self._array(values, np.zeros(1 << bits, dtype))
        self._set(**{f"{prefix}_shift": 64 - bits, f"{prefix}_mask": (1 << bits) - 1})

    def _enter(self, operation: int, texts: Strings, ids: np.ndarray | None = None) -> None:
        n = len(texts)
        e = np.zeros(1, ENTERING)
        more = np.empty((n if ids is None else 0, 2), np.int64)
        chosen = np.zeros(0, np.int64) if ids is None else np.ascontiguousarray(ids, np.int64)
        _point(e, raw=texts.raw, starts=texts.starts, stops=texts.stops, ids=chosen, more=more)
        e["n"] = n
        self._run(e, operation)
        if e["failed"][0]:
            raise ValueError("not a vocabulary of this kind")
        n_more = int(e["n_more"][0])
        if n_more:
            self._table("more", "more_keys", "more_ranks", np.int64, n_more)
            self._run(e, ENTER_MORE)

    def _run(self, record: np.ndarray, operation: int) -> None:
        self._kernel(self._v.ctypes.data, record.ctypes.data, operation)

    def find(self, texts: Sequence[str]) -> list[int]:
        """The ids of texts (without NUL), NO_ID for a text that is no entry."""
        packed = Strings.pack(texts)
        assert packed is not None
        e = np.zeros(1, ENTERING)
        ids = np.empty(len(texts), np.int64)
        for name, array in (
            ("raw", packed.raw),
            ("starts", packed.starts),
            ("stops", packed.stops),
            ("ids", ids),
        ):
            e[name] = array.ctypes.data
        e["n"] = len(texts)
        self._run(e, FIND)
        return ids.tolist()

    def merge(
        self, symbols: np.ndarray, sizes: np.ndarray, fit: np.ndarray
    ) -> Iterator[tuple[np.ndarray, list[list[int]]]]:
        """Like `BatchMerger.merge`, by the kernel."""
        m = np.zeros(1, MERGING)
        counts = np.zeros(len(sizes), np.int64)
        out = np.empty(len(symbols), np.int32)
        for name, array in (
            ("symbols", symbols),
            ("sizes", sizes),
            ("fit", fit),
            ("out", out),
            ("counts", counts),
        ):
            m[name] = array.ctypes.data
        m["n"], m["scratch"] = len(sizes), self._scratch.ctypes.data
        with self._lock:
            self._run(m, MERGE)
        group = np.flatnonzero(fit)
        stops = np.cumsum(counts[group]).tolist()
        ids = out[: stops[-1] if stops else 0].tolist()
        yield group, [ids[a:b] for a, b in zip([0, *stops], stops, strict=False)]

    def encode(
        self, segments: Sequence[str | int], others: Callable[[list[str]], list[Iterable[int]]]
    ) -> list[int]:
        """The ids of segments in order: texts are encoded, ids are passed through.

        `others` encodes the chunks that the kernel leaves to Python.
        """
        raw = [b"" if isinstance(s, int) else s.encode() for s in segments]
        text = b"".join(raw)
        items = np.empty((len(raw), 2), np.int64)
        stops = np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)))
        items[:, 1] = stops
        items[:, 0] = 0
        items[1:, 0] = stops[:-1]
        for i, segment in enumerate(segments):
            if isinstance(segment, int):
                items[i] = -1, segment
        out = np.empty(len(text) + len(raw), np.int32)
        left = np.empty((len(text) // 2 + len(raw) + 1, 3), np.int64)
        with self._lock:
            call = self._call
            _point(call, text=np.frombuffer(text or b"\0", np.uint8), items=items, out=out, left=left)
            call["n_items"], call["n_out"], call["n_left"] = len(raw), 0, 0
            self._kernel(self._v.ctypes.data, call.ctypes.data, ENCODE)
            n_out, n_left = int(call["n_out"][0]), int(call["n_left"][0])
        found = out[:n_out].tolist()
        if not n_left:
            return found
        gaps = left[:n_left].tolist()
        ids: list[int] = []
        done = 0
        encoded = others([text[begin:stop].decode() for _, begin, stop in gaps])
        for (place, _, _), more in zip(gaps, encoded, strict=True):
            ids += found[done:place]
            ids += more
            done = place
        ids += found[done:]
        return ids
