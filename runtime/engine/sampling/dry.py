"""DRY, "don't repeat yourself": a penalty on tokens that would prolong a repetition.

Defined by p-e-w 2024 (text-generation-webui) and, with sequence breakers of several tokens, by llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .edits import Change
from .params import MOST_PENALTY, SamplingParams

LOG_OF_LARGEST = 88.7228391  # of the largest float32; a power of the base beyond it counts as that
STEPS = 32  # new tokens up to which the index is moved on one by one


class Dry:
    """The penalty, and an index of the history: how long a passage ends at each place as it does at the end.

    The history may only grow between two calls, as a sequence's does; a shorter one starts the index anew.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._multiplier = params.dry_multiplier
        self._base = params.dry_base
        self._allowed = params.dry_allowed_length
        self._last = params.dry_penalty_last_n
        most = int(LOG_OF_LARGEST / math.log(self._base)) if self._base > 1.000001 else 0
        self._longest = self._allowed + most  # a longer repetition costs the same
        self._single: set[int] = set()  # sequence breakers of one token
        self._breakers: dict[int, list[list[int]]] = {}  # by their last id
        for breaker in params.dry_sequence_breakers:
            if isinstance(breaker, str):
                raise ValueError(f"dry_sequence_breakers has the text {breaker!r:.40}; an engine takes ids")
            self._breakers.setdefault(breaker[-1], []).append(list(breaker))
            if len(breaker) == 1:
                self._single.add(breaker[0])
        self._reset()

    def _reset(self) -> None:
        self._n = 0  # tokens of the history that the index knows
        self._ids = np.empty(0, np.int32)
        self._runs = np.empty(0, np.int32)  # [i]: tokens up to i that are those up to the end, not beyond
        self._breaker = (-1, 0)  # begin and length of the latest sequence breaker

    def change(self, history: Sequence[int]) -> Change | None:
        """The ids that would prolong a repetition, and what they lose."""
        self._read(history)
        n = self._n
        start = max(0, n - self._last) if self._last > 0 else 0
        if n - start <= self._allowed:
            return None
        begin, length = self._breaker
        limit = n - begin - length if begin >= start else n - start  # tokens behind the sequence breaker
        if limit < self._allowed:
            return None
        lengths = np.minimum(self._runs[start : n - 1], np.arange(1, n - start))
        np.minimum(lengths, limit, out=lengths)
        places = np.flatnonzero(lengths >= self._allowed)
        if not len(places):
            return None
        lengths = lengths[places]
        order = np.argsort(lengths, kind="stable")  # of several for one id the longest is the last
        nexts = self._ids[start + places[order] + 1].tolist()
        longest = dict(zip(nexts, lengths[order].tolist(), strict=True))
        amounts = {id_: self._penalty(n) for id_, n in longest.items() if id_ not in self._single}
        return Change(amounts) if amounts else None

    def _penalty(self, length: int) -> float:
        """What an id loses that prolongs a repetition of `length` tokens."""
        power = self._base ** (min(length, self._longest) - self._allowed)
        return min(self._multiplier * power, MOST_PENALTY)

    def n_lowered(self, n_history: int) -> None:
        """How many ids are changed is not known before they are."""
        return

    def _read(self, history: Sequence[int]) -> None:
        """Move the index on to the end of the history."""
        if len(history) < self._n:
            self._reset()
        new = history[self._n :]
        if not len(new):
            return
        first, end = self._n, len(history)
        if end > len(self._ids):
            room = np.zeros(max(256, 2 * end - len(self._ids)), np.int32)
            self._ids, self._runs = np.concatenate([self._ids, room]), np.concatenate([self._runs, room])
        self._ids[first:end] = new
        if len(new) <= STEPS:
            for n in range(first, end):
                self._step(n)
        else:
            self._index(end)
        for n, id_ in enumerate(new, first):
            for breaker in self._breakers.get(id_, ()):
                begin = n + 1 - len(breaker)
                if (begin, len(breaker)) > self._breaker and list(history[max(begin, 0) : n + 1]) == breaker:
                    self._breaker = begin, len(breaker)
        self._n = end

    def _step(self, n: int) -> None:
        """Let the index know the token at place `n`, the next one."""
        same = self._ids[:n] == self._ids[n]
        runs = np.zeros(n, np.int32)
        runs[1:] = self._runs[: max(n - 1, 0)]
        runs += 1
        runs *= same
        np.minimum(runs, self._longest, out=self._runs[:n])

    def _index(self, n: int) -> None:
        """Make the index of the first `n` tokens."""
        ids, runs = self._ids, self._runs
        runs[:n] = 0
        places = np.flatnonzero(ids[: n - 1] == ids[n - 1])
        length = 1
        while len(places) and length <= self._longest:
            runs[places] = length
            places = places[places >= length]
            places = places[ids[places - length] == ids[n - 1 - length]]
            length += 1
