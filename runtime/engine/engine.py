"""Engine: token ids in, token ids out; prefix reuse, chunked prefill, then decode of one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from time import perf_counter
from typing import TypeVar

import numpy as np

from ..config.model_config import ModelConfig
from .cache import NO_LOGITS, Batch, PageTable
from .errors import BadLogits, ContextExceeded, StaleGeneration
from .machine import Machine
from .sampler import Sampler, SamplingParams
from .state import SavedState, States
from .stats import FinishReason, GenerationStats
from .top_k import MAX_TOP_K, TopK

PREFILL_CHUNK = 512  # rows a step
Result = TypeVar("Result")
SAVED_STATES = 2  # saved copies of a recurrent state
REWIND = 16  # tokens before the end of a prompt where a state is saved: the next prompt may differ there


class Engine:
    """One sequence on one machine.

    Of `config` only `vocab_size` is read. A token of `end_ids` ends a generation. `context` is the maximum
    number of tokens of the sequence (default: the capacity of the page table). Only ids below `n_tokens` are
    generated, since the logits of many models are padded beyond their vocabulary (default: all).
    `prefill_chunk` is the maximum number of rows of a prefill step, which also bounds the delay of Ctrl-C.
    Sequences longer than `original_context` have keys with other rotary embeddings
    (`Program.original_context`); the cache never has keys of both kinds.

    The tokens of a generation stay in the cache, and the next generation computes only the tokens behind the
    longest common prefix. `states` are the machine's states of recurrent ops. They cannot be truncated, so
    that the engine saves copies during prefill and continues from the longest one that belongs to a prefix of
    the new prompt, or from the start. Between two steps the engine is always consistent, so that a generation
    may be closed or interrupted anywhere. Not thread-safe.
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
        self._sequences = np.full(machine.max_rows, sequence, np.int32)  # for the rows of a Batch
        self._original_context = original_context
        self._n_original = 0  # cached ids whose keys are those of a sequence up to the original context
        self._states = states if states and states.layers else None
        self._saved: list[SavedState] = []  # states of prefixes of the sequence, the longest last
        self._cached: list[int] = []  # the ids whose keys and values are in the cache
        self._running: object = None  # the generation that the cache belongs to

    def generate(
        self, ids: Sequence[int], params: SamplingParams | None = None
    ) -> Generator[int, None, None]:
        """Yield the tokens that follow `ids`, until the end; an end token is not yielded.

        The call raises TypeError or ValueError for invalid ids, and ContextExceeded for too many; the
        iterator raises BadLogits. From the first token on `stats` are those of this generation. Continuing
        the iterator of an earlier generation raises StaleGeneration, since the cache now belongs to this one.
        `params.stop` is ignored: the engine has no text.
        """
        prompt = self._check(ids)
        if not prompt:
            raise ValueError("the prompt is empty: there is no token to continue from")
        return self._generate(prompt, params or SamplingParams())

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """The logits behind each of `ids`, float32 [len(ids), vocab], independent of earlier calls.

        Clears the cache. Raises like `generate`.
        """
        tokens = self._check(ids)
        out = np.empty((len(tokens), self.config.vocab_size), np.float32)
        done = 0
        for part in self.logits_in_parts(tokens):
            out[done : done + len(part)] = part
            done += len(part)
        return out

    def logits_in_parts(self, ids: Sequence[int] | np.ndarray) -> Iterator[np.ndarray]:
        """The logits behind each of `ids` in chunks, float32 [rows, vocab] each.

        A chunk is valid until the next call of this engine or the next chunk. Clears the cache. The call
        raises like `generate`.
        """
        tokens = self._check(ids)
        self._running = None
        self._truncate(0)
        return self._logits_chunks(tokens)

    def _logits_chunks(self, tokens: list[int]) -> Iterator[np.ndarray]:
        chunk = min(self.machine.max_rows, self.machine.max_logits)
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            logits_indices = np.arange(len(part), dtype=np.int32)
            yield self._step(part, logits_indices, len(tokens), self.machine.step)

    def reset(self) -> None:
        """Clear the cache."""
        self._running = None
        self._truncate(0)

    def _check(self, ids: Sequence[int] | np.ndarray) -> list[int]:
        """`ids` as a list. Raises TypeError, ValueError or ContextExceeded."""
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
                    raise StaleGeneration("another call took the cache over; this generation cannot go on")
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
        """Truncate the cache to its common prefix with `prompt`, but its last token, whose logits are needed.

        Returns the number of cached tokens, which is smaller than the prefix if no state was saved there.
        """
        common = 0
        for ours, theirs in zip(self._cached, prompt[:-1], strict=False):
            if ours != theirs:
                break
            common += 1
        if len(prompt) <= self._original_context:
            common = min(common, self._n_original)
        elif self._original_context and self._n_original:
            common = 0
        self._truncate(common)
        return len(self._cached)

    def _prefill(self, tokens: list[int], sampler: Sampler) -> np.ndarray | TopK:
        """Run `tokens` in chunks; the logits behind the last, or their top k if `sampler` needs no more."""
        length = len(self._cached) + len(tokens)
        if self._states and len(tokens) > REWIND:
            self._fill(tokens[:-REWIND], length)
            del self._saved[: 1 - SAVED_STATES]
            self._saved.append(self._states.save(self._sequence))
            tokens = tokens[-REWIND:]
        last = (len(tokens) - 1) // self._chunk * self._chunk
        self._fill(tokens[:last], length)
        rest = tokens[last:]
        logits = self._last(rest, sampler, length)
        self.stats.prefilled_tokens += len(rest)
        return logits

    def _last(self, tokens: list[int], sampler: Sampler, length: int = 0) -> np.ndarray | TopK:
        """Run `tokens` in a step; the logits behind the last, or their top k if `sampler` needs no more."""
        logits_indices = np.array([len(tokens) - 1], np.int32)
        k = sampler.top_k_needed(self._n_tokens, len(self._cached) + len(tokens))
        if not 0 < k <= MAX_TOP_K:
            return self._step(tokens, logits_indices, length, self.machine.step)[0]

        def top_k(batch: Batch, table: PageTable) -> list[TopK]:
            return self.machine.top_k(batch, table, k, self._n_tokens)

        return self._step(tokens, logits_indices, length, top_k)[0]

    def _fill(self, tokens: list[int], length: int) -> None:
        """Run `tokens` of a prompt in chunks, only to fill the cache."""
        for start in range(0, len(tokens), self._chunk):
            chunk = tokens[start : start + self._chunk]
            self._step(chunk, NO_LOGITS, length, self.machine.step)
            self.stats.prefilled_tokens += len(chunk)

    def _step(
        self,
        tokens: list[int],
        logits_indices: np.ndarray,
        length: int,
        run: Callable[[Batch, PageTable], Result],
    ) -> Result:
        """Append `tokens` to the sequence and call `run` with their batch.

        `length` is that of the whole sequence at the end of its prompt (0: it ends with `tokens`).
        """
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
            self._truncate(first)
            raise
        self._cached += tokens
        if max(length, first + n) <= self._original_context:
            self._n_original = len(self._cached)
        return result

    def _truncate(self, length: int) -> None:
        """Truncate the cache to `length` tokens, or with recurrent states to their longest saved prefix."""
        if self._states:
            self._saved = [saved for saved in self._saved if saved.length <= length]
            if length and self._states.lengths[self._sequence] != length:
                length = self._saved[-1].length if self._saved else 0
                if self._saved:
                    self._states.restore(self._sequence, self._saved[-1])
        del self._cached[length:]
        self._n_original = min(self._n_original, len(self._cached))
        self.table.truncate(self._sequence, length)
