"""Reading texts for their outputs: many, packed into as few steps as possible, or one in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .cache import Batch, PageTable
from .machine import Machine

# Which outputs of a text are asked for: those of every token, of the first one, or of the last one.
Wanted = Literal["all", "first", "last"]
# Called with the index of a text, the position of the first row, and outputs of consecutive tokens, float32
# [rows, width], which are valid until the call returns.
Take = Callable[[int, int, np.ndarray], None]


@dataclass
class _Open:
    """A text that is being read: its index, its slot in the page table, and how many tokens have been fed."""

    index: int
    ids: Sequence[int]
    slot: int
    fed: int = 0


@dataclass(frozen=True)
class _Part:
    """The rows of one text in a step: n of its tokens from number `start` on."""

    text: _Open
    start: int
    n: int


class TextReader:
    """Reads texts on a machine, whose KV cache they have for themselves, in steps of up to `chunk` rows.

    `whole`: all tokens of a text go into one step, because attention reads both ways. `types` are those of
    the tokens of each text (see Batch.types), if there are any.
    """

    def __init__(
        self,
        machine: Machine,
        table: PageTable,
        texts: Sequence[Sequence[int]],
        wanted: Wanted,
        chunk: int,
        whole: bool,
        types: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._machine = machine
        self._table = table
        self._texts = texts
        self._types = types
        self._wanted = wanted
        self._whole = whole
        self._chunk = min(chunk, machine.max_logits) if wanted == "all" else chunk
        self._slots = list(range(table.max_sequences))
        self._open: list[_Open] = []
        self._next = 0  # the first text that is not open yet

    def read(self, take: Take) -> None:
        """Read all texts, in order, and hand their outputs to `take`. The page table is empty before and
        behind."""
        try:
            while parts := self._parts():
                outputs = self._machine.step(self._batch(parts), self._table)
                at = 0
                for part in parts:
                    n = len(self._rows_of(part))
                    if n:
                        first = part.start + self._rows_of(part)[0]
                        take(part.text.index, first, outputs[at : at + n])
                    at += n
                self._close_finished()
        finally:
            for slot in range(self._table.max_sequences):
                self._table.truncate(slot, 0)

    def _parts(self) -> list[_Part]:
        """The rows of the next step, and room for them in the page table; empty behind the last text."""
        parts, room = list[_Part](), self._chunk
        for text in self._open:
            room = self._feed(text, room, parts)
        while room and self._slots and self._next < len(self._texts):
            ids = self._texts[self._next]
            if not ids:
                self._next += 1
                continue
            if self._whole and len(ids) > room and parts:
                break
            text = _Open(self._next, ids, self._slots[-1])
            fed = self._feed(text, room, parts)
            if fed == room:  # no page is free
                break
            self._open.append(text)
            self._slots.pop()
            self._next += 1
            room = fed
        return parts

    def _feed(self, text: _Open, room: int, parts: list[_Part]) -> int:
        """Put as many of a text's tokens into the step as it has room for. Returns the room that is left."""
        left = len(text.ids) - text.fed
        n = left if self._whole else min(left, room)
        if not n or self._table.pages_needed(text.slot, n) > self._table.free_pages:
            return room
        self._table.extend(text.slot, n)
        parts.append(_Part(text, text.fed, n))
        text.fed += n
        return room - n

    def _rows_of(self, part: _Part) -> range:
        """The rows of a part, counted from its first one, whose outputs are asked for."""
        if self._wanted == "first":
            return range(part.start == 0)
        last = part.start + part.n == len(part.text.ids)
        return range(0 if self._wanted == "all" else part.n - last, part.n)

    def _batch(self, parts: list[_Part]) -> Batch:
        tokens, sequences, positions, lengths, wanted = ([] for _ in range(5))
        at = 0
        for part in parts:
            ids, end = part.text.ids, part.start + part.n
            tokens.append(np.asarray(ids[part.start : end], np.int32))
            sequences.append(np.full(part.n, part.text.slot, np.int32))
            positions.append(np.arange(part.start, end, dtype=np.int32))
            lengths.append(np.full(part.n, len(ids), np.int32))
            wanted.append(at + np.array(self._rows_of(part), np.int32))
            at += part.n
        join = np.concatenate
        return Batch(
            join(tokens), join(sequences), join(positions), join(wanted), join(lengths), self._types_of(parts)
        )

    def _types_of(self, parts: list[_Part]) -> np.ndarray | None:
        if self._types is None:
            return None
        types = [self._types[part.text.index][part.start : part.start + part.n] for part in parts]
        return np.concatenate([np.asarray(each, np.int32) for each in types])

    def _close_finished(self) -> None:
        """Give up the slots and pages of texts whose last token has been fed."""
        for text in [text for text in self._open if text.fed == len(text.ids)]:
            self._table.truncate(text.slot, 0)
            self._slots.append(text.slot)
            self._open.remove(text)


def most_logits(machine: Machine) -> int:
    """Tokens of a chunk."""
    return min(machine.max_rows, machine.max_logits)


def next_logits(machine: Machine, table: PageTable, tokens: list[int], start: int) -> np.ndarray:
    """The logits of the chunk of `tokens` that begins at `start`, float32 [rows, vocab], valid until the next
    step. Sequence 0 of the table must have the tokens in front of it; it is empty if the step fails.
    """
    part = tokens[start : start + most_logits(machine)]
    n, end = len(part), start + len(part)
    batch = Batch(
        tokens=np.array(part, np.int32),
        sequences=np.zeros(n, np.int32),
        positions=np.arange(start, end, dtype=np.int32),
        logits_indices=np.arange(n, dtype=np.int32),
        lengths=np.full(n, len(tokens), np.int32) if len(tokens) > end else None,
    )
    try:
        table.extend(0, n)
        return machine.step(batch, table)
    except BaseException:  # also Ctrl-C
        table.truncate(0, 0)
        raise
