"""Ids in, ids out: prefix reuse, chunked prefill, then one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from time import perf_counter
from typing import Protocol, TypeVar

import numpy as np

from ..config.model_config import ModelConfig
from .cache import Batch, PageTable
from .sampler import BadLogits, Sampler, SamplingParams
from .state import SavedState, States
from .stats import FinishReason, GenerationStats
from .top_k import MAX_TOP_K, TopK

PREFILL_CHUNK = 512  # rows a step
Result = TypeVar("Result")
NONE = np.empty(0, np.int32)  # logits_indices of a step whose logits nobody needs
SAVED_STATES = 2  # copies of a recurrent state that are kept
REWIND = 16  # tokens before the end of a prompt where one is taken: the next prompt may end otherwise


class Machine(Protocol):
    """What runs the steps; see ReferenceMachine and CpuMachine."""

    @property
    def max_rows(self) -> int: ...  # rows a step at most

    @property
    def max_logits(self) -> int: ...  # rows of a step that may have logits

    @property
    def states(self) -> States: ...  # of recurrent ops, if the model has any

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        """float32 [len(batch.logits_indices), vocab], valid until the next step."""
        ...

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        """The same step; the top k of the first `n_tokens` ids for each row in `logits_indices`.

        `k` is at most MAX_TOP_K; if there are fewer ids, all of them. Valid until the next step.
        """
        ...


class ContextExceeded(ValueError):
    """The prompt has more tokens than the context holds."""


class Engine:
    """One sequence on one machine.

    `config` needs `vocab_size` only. `end_ids` end a generation. `context` is the most tokens the sequence
    may have: what the page table holds unless given. Only ids below `n_tokens` are generated: many
    models pad their logits beyond the tokens that there are (default: all). `prefill_chunk` bounds the
    rows of a prefill step, and with them how long Ctrl-C waits for an answer. `original_context`: the keys of
    a longer sequence are rotated otherwise (`Program.original_context`), and not mixed with the others.

    The tokens of a generation stay in the cache, and the next one computes only what follows the
    longest common prefix. `states` are the machine's, of a model with recurrent ops: these cannot be cut
    short, so copies of the latest prompts' are kept, and it goes on from the longest that is part of the
    new one, or from the start. Between two steps the engine is always consistent, so a generation may be
    closed or interrupted anywhere. Not for use from several threads at once.
    """

    def __init__(
        self,
        machine: Machine,
        table: PageTable,
        config: ModelConfig,
        end_ids: Collection[int] = (),
        *,
        context: int | None = None,
        n_tokens: int | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        sequence: int = 0,
        original_context: int = 0,
        states: States | None = None,
    ) -> None:
        capacity = table.n_pages * table.page_size
        if context is not None and not 0 < context <= capacity:
            raise ValueError(f"a context of {context} tokens does not fit a page table for {capacity}")
        self.machine = machine
        self.table = table
        self.config = config
        self.end_ids = frozenset(end_ids)
        self.context = context or capacity
        self.stats = GenerationStats()
        self._n_tokens = min(n_tokens or config.vocab_size, config.vocab_size)
        self._chunk = max(1, min(prefill_chunk, machine.max_rows))
        self._sequence = sequence
        self._sequences = np.full(machine.max_rows, sequence, np.int32)  # of the rows of a step
        self._original_context = original_context
        self._short = 0  # how many of the cached ids were read when the sequence was no longer than that
        self._states = states if states and states.layers else None
        self._saved: list[SavedState] = []  # of beginnings of the sequence, the longest last
        self._cached: list[int] = []  # the ids whose keys and values are in the cache
        self._running: object = None  # the generation that the cache belongs to

    def generate(
        self, ids: Sequence[int], params: SamplingParams | None = None
    ) -> Generator[int, None, None]:
        """Yield the tokens that follow `ids`, until the end; an end token is not yielded.

        Raises at once TypeError or ValueError for ids that are none, ContextExceeded for too many; and
        while running BadLogits. `stats` is of this generation from its first token on; iterating an
        earlier generation further raises RuntimeError, since the cache is no longer its own.
        `params.stop` is not looked at here: the engine does not know text.
        """
        prompt = self._check(ids)
        if not prompt:
            raise ValueError("the prompt is empty: there is no token to continue from")
        return self._generate(prompt, params or SamplingParams())

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [len(ids), vocab]: the logits after each of `ids`, independent of earlier calls.

        The cached sequence is dropped. Raises as `generate` does.
        """
        tokens = self._check(ids)
        out = np.empty((len(tokens), self.config.vocab_size), np.float32)
        done = 0
        for part in self.logits_in_parts(tokens):
            out[done : done + len(part)] = part
            done += len(part)
        return out

    def logits_in_parts(self, ids: Sequence[int] | np.ndarray) -> Iterator[np.ndarray]:
        """The same in parts [rows, vocab], as many rows as the machine gives at once. A part is valid until
        the next one is asked for, or anything else of this engine. Raises at once, as `generate` does.
        """
        tokens = self._check(ids)
        self._running = None
        self._keep(0)
        return self._parts(tokens)

    def _parts(self, tokens: list[int]) -> Iterator[np.ndarray]:
        chunk = min(self.machine.max_rows, self.machine.max_logits)
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            logits_indices = np.arange(len(part), dtype=np.int32)
            yield self._step(part, logits_indices, len(tokens), self.machine.step)

    def reset(self) -> None:
        """Forget the cached sequence."""
        self._running = None
        self._keep(0)

    def _check(self, ids: Sequence[int] | np.ndarray) -> list[int]:
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise TypeError("token ids must be a flat sequence of whole numbers")
        if array.size and not 0 <= array.min() <= array.max() < self.config.vocab_size:
            wrong = int(array[(array < 0) | (array >= self.config.vocab_size)][0])
            raise ValueError(
                f"token id {wrong} is not in the vocabulary of {self.config.vocab_size} (ids start at 0)"
            )
        if array.size > self.context:
            raise ContextExceeded(f"the prompt has {array.size} tokens, but the context holds {self.context}")
        return array.tolist()

    def _generate(self, prompt: list[int], params: SamplingParams) -> Generator[int, None, None]:
        running = self._running = object()
        stats = self.stats = GenerationStats(prompt_tokens=len(prompt))
        sampler = Sampler(params)
        ends = frozenset() if params.ignore_eos else self.end_ids
        reason: FinishReason = "interrupted"
        token = -1
        start = perf_counter()
        try:
            stats.cached_tokens = self._reuse(prompt)
            logits = self._prefill(prompt[stats.cached_tokens :], sampler)
            stats.prompt_seconds = perf_counter() - start
            while stats.new_tokens != params.max_tokens:
                if stats.new_tokens:
                    if len(self._cached) == self.context:
                        reason = "context"
                        return
                    start = perf_counter()
                    logits = self._last([token], sampler)
                    stats.decode_steps += 1
                token = self._sample(sampler, logits, stats)
                if stats.new_tokens:
                    stats.decode_seconds += perf_counter() - start
                else:
                    stats.time_to_first_token = perf_counter() - start
                if token in ends:
                    reason = "stop"
                    return
                stats.new_tokens += 1
                yield token
                if self._running is not running:
                    raise RuntimeError("another call has taken the cache over; this generation cannot go on")
            reason = "length"
        finally:
            stats.finish_reason = reason

    def _sample(self, sampler: Sampler, logits: np.ndarray | TopK, stats: GenerationStats) -> int:
        if not isinstance(logits, TopK):
            logits = logits[: self._n_tokens]
        try:
            return sampler.sample(logits, self._cached)
        except BadLogits as error:
            step = f"token {stats.new_tokens + 1} of the answer (position {len(self._cached)})"
            raise BadLogits(f"cannot choose {step}: {error}") from None

    def _reuse(self, prompt: list[int]) -> int:
        """Keep what the cache has in common with `prompt`, but never its last token: that one's logits
        are needed. Returns the number of tokens kept, which is less where a state cannot be rewound."""
        common = 0
        for ours, theirs in zip(self._cached, prompt[:-1], strict=False):
            if ours != theirs:
                break
            common += 1
        if len(prompt) <= self._original_context:
            common = min(common, self._short)
        elif self._original_context and self._short:
            common = 0
        self._keep(common)
        return len(self._cached)

    def _prefill(self, tokens: list[int], sampler: Sampler) -> np.ndarray | TopK:
        """Feed `tokens` in chunks; the logits after the last, or what `sampler` needs of them."""
        length = len(self._cached) + len(tokens)
        if self._states and len(tokens) > REWIND:
            self._feed(tokens[:-REWIND], length)
            del self._saved[: 1 - SAVED_STATES]
            self._saved.append(self._states.save(self._sequence))
            tokens = tokens[-REWIND:]
        last = (len(tokens) - 1) // self._chunk * self._chunk
        self._feed(tokens[:last], length)
        rest = tokens[last:]
        return self._last(rest, sampler, length)

    def _last(self, tokens: list[int], sampler: Sampler, length: int = 0) -> np.ndarray | TopK:
        """Run `tokens`; the logits after the last one, or the best of them, if `sampler` needs no more."""
        logits_indices = np.array([len(tokens) - 1], np.int32)
        best = sampler.top_k_needed(self._n_tokens, len(self._cached) + len(tokens))
        if not 0 < best <= MAX_TOP_K:
            return self._step(tokens, logits_indices, length, self.machine.step)[0]

        def choose(batch: Batch, table: PageTable) -> list[TopK]:
            return self.machine.top_k(batch, table, best, self._n_tokens)

        return self._step(tokens, logits_indices, length, choose)[0]

    def _feed(self, tokens: list[int], length: int) -> None:
        """Run `tokens` in chunks, for what they leave in the cache."""
        for start in range(0, len(tokens), self._chunk):
            self._step(tokens[start : start + self._chunk], NONE, length, self.machine.step)

    def _step(
        self,
        tokens: list[int],
        logits_indices: np.ndarray,
        length: int,
        run: Callable[[Batch, PageTable], Result],
    ) -> Result:
        """`run` tokens, the next ones of a sequence that will have `length` (0: that ends with them)."""
        n = len(tokens)
        first = len(self._cached)
        batch = Batch(
            tokens=np.array(tokens, np.int32),
            sequences=self._sequences[:n],
            positions=np.arange(first, first + n, dtype=np.int32),
            logits_indices=logits_indices,
            lengths=np.full(n, length, np.int32) if length > first + n else None,
        )
        try:
            self.table.extend(self._sequence, n)
            result = run(batch, self.table)
        except BaseException:  # also Ctrl-C
            self._keep(first)
            raise
        self._cached += tokens
        if max(length, first + n) <= self._original_context:
            self._short = len(self._cached)
        return result

    def _keep(self, length: int) -> None:
        """Forget what comes after `length` tokens; more, where there is a state that is not known there."""
        if self._states:
            self._saved = [saved for saved in self._saved if saved.length <= length]
            if length and self._states.lengths[self._sequence] != length:
                length = self._saved[-1].length if self._saved else 0
                if self._saved:
                    self._states.restore(self._sequence, self._saved[-1])
        del self._cached[length:]
        self._short = min(self._short, len(self._cached))
        self.table.truncate(self._sequence, length)
