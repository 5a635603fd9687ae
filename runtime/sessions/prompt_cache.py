"""The beginnings of long prompts on disk, so that the next process does not compute them again.

A prompt is cut into pieces of PIECE tokens. A piece is a file (`kept_file.py`) whose name is a digest of the
model, of the layout of its pages, and of all tokens up to its end; it holds the piece's pages and, with
recurrent states, the state behind it. So prompts that begin alike share files, and what another model or
another type of cache has made is never found.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from ...quant.cache_folder import PROMPTS
from ...quant.errors import DamagedFile
from ..engine.sampling.params import SamplingParams
from ..engine.scheduling.placement import Kept
from .kept_file import read_kept_file, write_kept_file
from .kept_pages import about_cache, from_parts, put_in, to_parts

if TYPE_CHECKING:
    from ..model.model import Model

KIND = "piece of a prompt"
VERSION = 1
PIECE = 512  # tokens; prompts without a whole piece are not kept
MOST_BYTES = 2 << 30  # of all files together


class PromptCache:
    """The beginnings of a model's prompts on disk, in kukri's own folder.

        cache = kukri.PromptCache(model)
        model.answer(…)
        cache.keep()

    The model's engine asks it before it computes a prompt; `keep` writes what it did not have of the first
    one. Files that have not been used for the longest time go when all together have over `most_bytes`.
    `warn` is called with a line where files cannot be written; a file that is damaged counts as none.
    """

    def __init__(
        self, model: Model, most_bytes: int = MOST_BYTES, warn: Callable[[str], None] = lambda line: None
    ) -> None:
        self.model = model
        self._most_bytes = most_bytes
        self._warn = warn
        self._first: list[int] | None = None  # the first long prompt
        self._made: dict[int, Kept] = {}  # by the number of a piece: what a recurrent model made of it
        self._lock = threading.Lock()
        model.engine.prompt_source = self

    def begin(self, ids: list[int]) -> None:
        """Give the engine's cache what there is of the beginning of a prompt, if it does not know more."""
        if len(ids) <= PIECE or not self._is_usable():
            return
        if not self._lock.acquire(blocking=False):  # another thread does this, or this one further down
            return
        try:
            self._begin(ids)
        except OSError as problem:
            self._warn(f"the prompt is not kept: {problem.strerror or problem}")
        finally:
            self._lock.release()

    def _begin(self, ids: list[int]) -> None:
        PROMPTS.make()
        files, n = self._files(ids), self.model.engine.known(ids)
        pieces = self._read(files, ids) if len(files) * PIECE > n else []
        if len(pieces) * PIECE > n:
            with suppress(DamagedFile):
                if put_in(self.model, _joined(pieces), "a kept prompt"):
                    n = len(pieces) * PIECE
        if self._first is None:
            self._first = ids
            if self._has_states():
                self._compute(ids, n // PIECE, len(files))

    def keep(self) -> int:
        """Write what is missing of the first prompt; returns the bytes."""
        ids, self._first = self._first, None
        if ids is None:
            return 0
        n_bytes = 0
        try:
            files = self._files(ids)
            missing = [i for i, file in enumerate(files) if not file.exists()]
            pieces = self._pieces(ids, missing) if missing else {}
            for i in missing:
                size = sum(page.nbytes for page in pieces[i].pages) if i in pieces else 0
                if i not in pieces or n_bytes + size > self._most_bytes:
                    break
                about, parts = to_parts(pieces[i])
                about |= about_cache(self.model) | {"version": VERSION, "number": i}
                n_bytes += write_kept_file(files[i], KIND, about, parts)
            if missing:
                _mark_as_used(files)
                PROMPTS.make_room(self._most_bytes, [files[i] for i in missing])
        except OSError as problem:
            self._warn(f"the prompt is not kept: {problem.strerror or problem}")
        self._made.clear()
        return n_bytes

    def _is_usable(self) -> bool:
        engine = self.model.engine
        return engine.shares_beginnings and PIECE % engine.table.page_size == 0

    def _has_states(self) -> bool:
        return bool(self.model.engine.machine.states.layers)

    # ---- files

    def _files(self, ids: Sequence[int]) -> list[Path]:
        """The files of all pieces of a prompt; the last token of a prompt is always computed."""
        long = self.model.engine.has_long_keys(len(ids))
        about = f"{VERSION} {PIECE} {long} {about_cache(self.model)}"
        digest, files = hashlib.sha256(about.encode()), []
        for i in range((len(ids) - 1) // PIECE):
            digest.update(np.array(ids[i * PIECE : (i + 1) * PIECE], "<i4").tobytes())
            files.append(PROMPTS.path / f"{digest.hexdigest()[:40]}{PROMPTS.ending}")
        return files

    def _read(self, files: Sequence[Path], ids: Sequence[int]) -> list[Kept]:
        """The first pieces, as many as are there one after the other; they count as used now."""
        pieces: list[Kept] = []
        for i, file in enumerate(files):
            try:
                kept_file = read_kept_file(file, KIND)
                kept = from_parts(kept_file.about, kept_file.parts, file.name)
            except DamagedFile:
                with suppress(OSError):
                    file.unlink()
                break
            except OSError:
                break
            about: dict[str, Any] = about_cache(self.model) | {"version": VERSION, "number": i}
            same = {key: kept_file.about.get(key) for key in about} == about
            if not same or kept.ids != list(ids[i * PIECE : (i + 1) * PIECE]):
                break
            pieces.append(kept)
        _mark_as_used(files[: len(pieces)])
        return pieces

    # ---- the cache

    def _pieces(self, ids: list[int], missing: Sequence[int]) -> dict[int, Kept]:
        """The pieces of a prompt with these numbers, as far as the model's cache has them."""
        if self._has_states():
            return self._made
        engine = self.model.engine
        kept = engine.take_out(ids, (missing[-1] + 1) * PIECE)
        there = [i for i in missing if (i + 1) * PIECE <= len(kept.ids)]
        return {i: _cut(kept, i, engine.table.page_size) for i in there}

    def _compute(self, ids: list[int], first: int, end: int) -> None:
        """Compute the pieces of a prompt from number `first` on one by one: a recurrent state is that behind
        the last token only, so that it is taken behind each piece."""
        engine = self.model.engine
        for number in range(first, end):
            beginning = ids[: (number + 1) * PIECE]
            for _ in engine.generate(beginning, SamplingParams(max_tokens=0)):
                pass
            kept = engine.take_out(beginning)
            if len(kept.ids) == len(beginning):
                self._made[number] = _cut(kept, number, engine.table.page_size)


def _mark_as_used(files: Sequence[Path]) -> None:
    """Note that pieces of a prompt were used now. They go before those in front of them."""
    now = time_ns()
    for i, file in enumerate(files):
        with suppress(OSError):
            os.utime(file, ns=(now - i * 1000, now - i * 1000))


def _cut(kept: Kept, number: int, page_size: int) -> Kept:
    """One piece of a beginning, with the state behind it."""
    pages = PIECE // page_size
    return replace(
        kept,
        ids=kept.ids[number * PIECE : (number + 1) * PIECE],
        pages=kept.pages[number * pages : (number + 1) * pages],
        states=tuple(replace(state, length=PIECE) for state in kept.states[-1:]),
    )


def _joined(pieces: Sequence[Kept]) -> Kept:
    """Pieces as one beginning, with the state behind the last."""
    return replace(
        pieces[-1],
        ids=[id_ for piece in pieces for id_ in piece.ids],
        pages=[page for piece in pieces for page in piece.pages],
        states=tuple(replace(state, length=len(pieces) * PIECE) for state in pieces[-1].states),
    )
