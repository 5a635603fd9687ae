"""Engine: token ids in, token ids out, for one sequence or many that share a machine and its KV cache."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from ..config.model_config import ModelConfig
from .beams.generation import BeamGeneration
from .beams.group import BeamGroup
from .cache import PageTable
from .constraint import Constraint
from .errors import ContextExceeded, QueueFull, StaleGeneration
from .machine import Machine
from .observing import TakeObserved, Tap, observe_sequence
from .reading import Take, TextReader, Wanted, most_logits, next_logits
from .sampling.beam_search import Beam, BeamParams, BeamSearch, BeamState, EarlyStopping
from .sampling.params import SamplingParams
from .sampling.sampler import Sampler
from .scheduling.background import Background
from .scheduling.constrained import ConstrainedAnswer
from .scheduling.driver import Driver
from .scheduling.generation import Generation
from .scheduling.placement import Kept, Limits
from .scheduling.scheduler import Scheduler
from .scheduling.sequence import Sequence as EngineSequence
from .scheduling.usage import Usage, usage
from .speculation.drafter import Drafter
from .speculation.speculation import SequenceDrafts
from .state import States
from .stats import FinishReason, GenerationStats
from .timeline import Timeline

PREFILL_CHUNK = 512  # rows a step
MAX_WAITING = 4096  # requests in the queue
LEAD = 8  # tokens that a generation may be ahead of its consumer while others keep the engine running


class PromptSource(Protocol):
    """What an engine asks before it computes a prompt; it may `put_in` what it has of that."""

    def begin(self, ids: list[int]) -> None: ...


class Engine:
    """Any number of sequences on one machine; `table.max_sequences` of them run at a time.

    Of `config` only `vocab_size` is read. A token of `end_ids` ends a generation. `context` is the maximum
    number of tokens of a sequence (default: the capacity of the page table). Only ids below `n_tokens` are
    generated, since the logits of many models are padded beyond their vocabulary (default: all).
    `prefill_chunk` is the maximum number of rows of a prefill step, which also bounds the delay of Ctrl-C.
    Sequences longer than `original_context` have keys with other rotary embeddings
    (`Program.original_context`); the cache never has keys of both kinds. `states` are the machine's states of
    recurrent ops. `max_waiting` bounds the queue. With `deterministic`, each step has rows of one sequence,
    whose prefix is never taken from another: what runs beside a request cannot change its results, not even
    by rounding. With `speculate`, tokens that the last ids make likely are computed along where that pays
    (`speculation/`), which changes no result but by rounding; so are those that a `drafter` proposes.
    `whole_texts`: attention reads both ways, so that `read` puts all of a text into one step.

    The tokens of a sequence stay in the cache when it ends, and the next one that begins with them computes
    only the rest. Between two steps the engine is always consistent, so that a generation may be closed or
    interrupted anywhere. It may be used from any thread.
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
        original_context: int = 0,
        states: States | None = None,
        max_waiting: int = MAX_WAITING,
        deterministic: bool = False,
        speculate: bool = True,
        drafter: Drafter | None = None,
        whole_texts: bool = False,
    ) -> None:
        capacity = table.n_pages * table.page_size
        if context is not None and not 0 < context <= capacity:
            raise ValueError(f"a context of {context} tokens does not fit a page table for {capacity}")
        self.machine = machine
        self.table = table
        self.config = config
        self.end_ids = frozenset(end_ids)
        self.context = context or capacity
        self.max_waiting = max_waiting
        self.prefill_chunk = max(1, min(prefill_chunk, machine.max_rows))
        self.stats = GenerationStats()  # of the generation that began last
        limits = Limits(
            context=self.context,
            n_tokens=min(n_tokens or config.vocab_size, config.vocab_size),
            chunk=self.prefill_chunk,
            original_context=original_context,
            alone=deterministic,
        )
        self._state_shapes = [layer.shape for layer in states.layers] if states else []
        self._ngrams = speculate and not deterministic
        self._drafter = None if deterministic else drafter
        self._chunk, self._whole = limits.chunk, whole_texts
        self._scheduler = Scheduler(machine, table, limits, states, self._drafter)
        self._driver = Driver(self._scheduler)
        self._background = Background()  # computes masks of constrained answers
        self.prompt_source: PromptSource | None = None
        self._logits_run: object = None  # whose tokens lie in the cache between two parts of their logits

    def submit(
        self,
        ids: Sequence[int],
        params: SamplingParams | None = None,
        priority: int = 0,
        constraint: Constraint | None = None,
    ) -> Generation:
        """Queue a request for the tokens that follow `ids`; they come as the engine's steps run.

        Requests of a higher `priority` go first, those of the same in order of arrival. The answer keeps to
        `constraint`, which is for this request alone: tokens that it bans are not drawn, those that it forces
        take no step each, and with what is complete the answer ends, also under `ignore_eos`. Raises
        TypeError or ValueError for invalid ids, ContextExceeded for too many, and QueueFull. `params.stop` is
        ignored: the engine has no text.
        """
        return self._submit(self._prompt(ids), params or SamplingParams(), constraint, priority=priority)

    def _prompt(self, ids: Sequence[int]) -> list[int]:
        prompt = self._check(ids)
        if not prompt:
            raise ValueError("the prompt is empty: there is no token to continue from")
        if self.prompt_source is not None:
            self.prompt_source.begin(prompt)
        return prompt

    def _submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        constraint: Constraint | None,
        *,
        priority: int = 0,
        most_unread: int | None = None,
    ) -> Generation:
        sequence = self._new_sequence(prompt, params, priority)
        sequence.most_unread = most_unread
        if params.ignore_eos and constraint is not None:
            sequence.end_ids = self.end_ids
        if self._ngrams or self._drafter is not None:
            sequence.drafts = SequenceDrafts(self._scheduler.times.costs, self._ngrams, self._drafter)
        if constraint is not None:
            sequence.stats.complete = False
            n_tokens = self._scheduler.limits.n_tokens
            sequence.constrained = ConstrainedAnswer(constraint, self._background, n_tokens)
        self._driver.submit(sequence)
        return Generation(self._driver, sequence)

    def _new_sequence(self, prompt: list[int], params: SamplingParams, priority: int) -> EngineSequence:
        if len(self._scheduler.waiting) >= self.max_waiting:
            raise QueueFull(f"{self.max_waiting} requests are waiting already")
        stats = self.stats = GenerationStats(prompt_tokens=len(prompt))
        ends = frozenset() if params.ignore_eos else self.end_ids
        return EngineSequence(prompt, Sampler(params), stats, ends, priority=priority)

    def submit_beams(
        self,
        ids: Sequence[int],
        beams: BeamParams,
        params: SamplingParams | None = None,
        priority: int = 0,
        trail: list[BeamState] | None = None,
    ) -> BeamGeneration:
        """Queue a beam search for what follows `ids`; see BeamParams, and BeamSearch for what counts of
        `params`. Its beams run in one step, as far as there are slots for so many sequences. `trail` gets
        what the search knows behind each step. Raises like `submit`, and ValueError for parameters that a
        search cannot have.
        """
        prompt, params = self._prompt(ids), params or SamplingParams()
        left = self.context + 1 - len(prompt)
        most_new = left if params.max_tokens is None else min(left, params.max_tokens)
        cut_reason: FinishReason = "context" if most_new == left != params.max_tokens else "length"
        leader = self._new_sequence(prompt, params, priority)
        search = BeamSearch(prompt, beams, params, leader.end_ids, most_new, cut_reason)
        group = BeamGroup(search, leader, trail)
        self._driver.submit(leader)
        return BeamGeneration(self._driver, group)

    def beams(
        self,
        ids: Sequence[int],
        k: int,
        params: SamplingParams | None = None,
        *,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
    ) -> list[Beam]:
        """The `k` answers that a beam search finds, the best first: the result of `submit_beams`."""
        return self.submit_beams(ids, BeamParams(k, length_penalty, early_stopping), params).result()

    def generate(
        self,
        ids: Sequence[int],
        params: SamplingParams | None = None,
        constraint: Constraint | None = None,
    ) -> Generator[int, None, None]:
        """Yield the tokens that follow `ids`, until the end; an end token is not yielded.

        Errors are those of `submit`, at the call; the iterator raises BadLogits and ConstraintError. It is
        lazy: the request is queued when the first token is asked for, and runs at most LEAD tokens ahead of
        its consumer. From then on `stats` are those of this generation.
        """
        return self._generate(self._prompt(ids), params or SamplingParams(), constraint)

    def _generate(
        self, prompt: list[int], params: SamplingParams, constraint: Constraint | None
    ) -> Generator[int, None, None]:
        lead = LEAD if self.table.max_sequences > 1 else 1
        generation = self._submit(prompt, params, constraint, most_unread=lead)
        try:
            yield from generation
        finally:
            generation.close()

    @property
    def shares_beginnings(self) -> bool:
        """Whether generations begin with what others have computed; not in the deterministic mode."""
        return not self._scheduler.limits.alone

    def known(self, ids: Sequence[int]) -> int:
        """How many of `ids` need not be computed, since the cache has the beginning that they are."""
        with self._driver.exclusive(), self._scheduler.lock:
            return self._scheduler.placement.known(self._check(ids))

    def has_long_keys(self, n: int) -> bool:
        """Whether a sequence of `n` tokens has other keys than a short one (`original_context`)."""
        return self._scheduler.placement.is_long(n)

    def take_out(self, ids: Sequence[int], most: int | None = None) -> Kept:
        """Copies of what the cache holds of the longest beginning of `ids` that it knows, `most` ids of it at
        most (default: all); it may be empty."""
        with self._driver.exclusive(), self._scheduler.lock:
            self._scheduler.drop_cancelled()
            checked = self._check(ids)
            return self._scheduler.placement.take_out(checked, len(ids) if most is None else most)

    def put_in(self, kept: Kept) -> bool:
        """Let generations begin with what `take_out` gave, in this process or another, on a machine of the
        same `page_layout` with the same model. False if there is no room for it. Raises ValueError if it is
        not the content of as many pages as its ids have."""
        self._check(kept.ids)
        kept.check(self.table.page_size, len(self.machine.read_page(0)), self._state_shapes)
        with self._driver.exclusive(), self._scheduler.lock:
            return self._scheduler.placement.put_in(kept, self._scheduler.running)

    def start(self) -> None:
        """Let a thread of the engine's own run the steps, instead of the threads that wait for tokens."""
        self._driver.start()

    def use(self) -> Usage:
        """How many sequences run and wait now, and the pages of the cache that they hold."""
        return usage(self._scheduler)

    @property
    def timeline(self) -> Timeline:
        """The last steps and their rows, noted while somebody watches."""
        return self._scheduler.timeline

    def close(self) -> None:
        """End all generations, behind the step that runs. Later calls, and theirs, raise ModelClosed.

        The machine is not closed.
        """
        self._driver.close()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that made the engine, which cannot use it."""
        return self._driver.forked

    def reset(self) -> None:
        """Forget what the cache holds. Generations that run begin anew, with the tokens that they have."""
        with self._alone():
            pass

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Have the machine and the whole cache while the block runs."""
        with self._driver.exclusive():
            self._logits_run = None
            with self._scheduler.lock:
                self._scheduler.drop_cancelled()
                self._scheduler.empty()
                self.table.truncate(0, 0)
            yield

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """The logits behind each of `ids`, float32 [len(ids), vocab], independent of earlier calls.

        Clears the cache. Raises like `submit`.
        """
        tokens = self._check(ids)
        out = np.empty((len(tokens), self.config.vocab_size), np.float32)
        with self._alone():
            try:
                for start in range(0, len(tokens), most_logits(self.machine)):
                    part = next_logits(self.machine, self.table, tokens, start)
                    out[start : start + len(part)] = part
            finally:
                self.table.truncate(0, 0)
        return out

    def logits_in_parts(self, ids: Sequence[int] | np.ndarray) -> Iterator[np.ndarray]:
        """The logits behind each of `ids` in chunks, float32 [rows, vocab] each.

        A chunk is valid until the next call of this engine or the next chunk. Clears the cache. The call
        raises like `submit`; the iterator raises StaleGeneration if the engine was used in between.
        """
        tokens = self._check(ids)
        with self._alone():
            run = self._logits_run = object()
        return self._logits_parts(tokens, run)

    def _logits_parts(self, tokens: list[int], run: object) -> Iterator[np.ndarray]:
        for start in range(0, len(tokens), most_logits(self.machine)):
            with self._driver.exclusive():
                used = self._scheduler.running or self._scheduler.waiting
                if self._logits_run is not run or used or int(self.table.lengths[0]) != start:
                    raise StaleGeneration("another call took the cache over; these logits cannot go on")
                part = next_logits(self.machine, self.table, tokens, start)
            yield part
        with self._driver.exclusive():
            if self._logits_run is run:
                self.table.truncate(0, 0)

    def read(
        self,
        texts: Sequence[Sequence[int]],
        wanted: Wanted,
        take: Take,
        types: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Read independent texts, and hand the machine's outputs to `take` as they are computed.

        They are hidden states if the program ends with them, and else logits: see `reading.py`. Texts are
        packed into steps in their order, so that similar lengths should follow each other. `types` are the
        token types of each text, for models that have some. Clears the cache.
        Raises like `submit`; an empty text has no outputs.
        """
        ids = [self._check(text) for text in texts]
        with self._alone():
            TextReader(self.machine, self.table, ids, wanted, self._chunk, self._whole, types).read(take)

    def observe(
        self, ids: Sequence[int], taps: Sequence[Tap], take: TakeObserved, most_rows: int | None = None
    ) -> None:
        """Run `ids` as the only sequence, with logits of all rows, and hand what the buffers of the machine's
        program hold at `taps` to `take` after each step, which may call `machine.finish`.

        Clears the cache. Raises like `submit`.
        """
        tokens = self._check(ids)
        with self._alone():
            observe_sequence(self.machine, self.table, tokens, taps, take, most_rows)

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
