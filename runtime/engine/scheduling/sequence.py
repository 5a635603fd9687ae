"""A sequence: one request on its way through the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..sampling.beam_search import Candidates
from ..sampling.logprobs import TokenLogprobs
from ..sampling.sampler import Sampler
from ..speculation.speculation import SequenceDrafts
from ..stats import FinishReason, GenerationStats
from .constrained import ConstrainedAnswer

if TYPE_CHECKING:
    from ..beams.group import BeamGroup

NO_SLOT = -1


@dataclass(eq=False)
class Sequence:
    """The state of one request: what is known of it, and how much of that the machine has seen.

    - `ids`: the prompt and, behind its `n_prompt` ids, what was generated: the only record of it. An
      interrupt leaves the rest to be derived from it again.
    - `n_cached`: how many of `ids` have their keys and values in the cache. The others are the rows to run.
    - `n_prefill`: the length of `ids` when it got its slot: rows up to there are prefill.
    - `slot`: its row in the block table, or NO_SLOT while it waits.
    - `logprobs`: of the generated tokens, if they are asked for; no fewer than there are tokens.
    - `prompt_logprobs`: of the prompt's, as far as they are known; None for the first.
    - `group`: the beam search that it is a beam of. `candidates`: what may follow a beam; it waits for those
      of its siblings then.
    - `most_unread`: it pauses while its consumer has not read so many tokens; None: never.
    """

    ids: list[int]
    sampler: Sampler
    stats: GenerationStats
    end_ids: frozenset[int]
    priority: int = 0
    arrival: int = 0
    most_unread: int | None = None
    n_prompt: int = field(init=False)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])
    n_cached: int = 0
    n_prefill: int = 0
    n_original: int = 0  # tokens in the cache whose keys are those of a sequence up to the original context
    slot: int = NO_SLOT
    group: BeamGroup | None = None
    candidates: Candidates | None = None
    drafts: SequenceDrafts | None = None  # what may follow its ids; None: nothing is drafted
    constrained: ConstrainedAnswer | None = None  # what its answer must look like
    saved: bool = False  # a recurrent state was saved during this prefill
    n_read: int = 0  # generated tokens that the consumer has taken
    reader: int = 0  # the thread that asked for a token last
    changed_at: float = 0.0  # when a token came last, on the monotonic clock
    error: BaseException | None = None
    cancelled: bool = False
    listener: Callable[[], None] | None = None  # called, in any thread, when there is something to read

    def __post_init__(self) -> None:
        self.n_prompt = len(self.ids)

    @property
    def n_new(self) -> int:
        """The number of generated tokens."""
        return len(self.ids) - self.n_prompt

    @property
    def finished(self) -> bool:
        """Whether no token will come any more."""
        return self.stats.finish_reason is not None

    @property
    def readable(self) -> bool:
        """Whether its consumer need not wait."""
        return self.finished or (self.n_new > self.n_read and self.group is None)

    @property
    def paused(self) -> bool:
        """Whether it stands still until its consumer reads, or its siblings have come as far."""
        if self.candidates is not None:
            return True
        return self.most_unread is not None and self.n_new - self.n_read >= self.most_unread

    @property
    def prefilling(self) -> bool:
        return self.n_cached < self.n_prefill

    @property
    def scores_prompt(self) -> bool:
        """Whether logits of the prompt's rows are needed still."""
        asked = self.sampler.params.prompt_logprobs is not None
        return asked and len(self.prompt_logprobs) < self.n_prompt

    @property
    def n_reusable(self) -> int:
        """How many of `ids` need not be computed if their keys and values are known: not the last one, and
        none whose logits are needed."""
        return len(self.prompt_logprobs) - 1 if self.scores_prompt else len(self.ids) - 1

    @property
    def members(self) -> list[Sequence]:
        """The sequences that end with it: all beams of its search, or itself."""
        return self.group.sequences if self.group is not None else [self]

    @property
    def order(self) -> tuple[int, int]:
        """Sorts sequences: the ones that go first, first."""
        return -self.priority, self.arrival

    def finish(self, reason: FinishReason) -> None:
        """Note why no token comes any more."""
        if self.stats.finish_reason is None:
            self.stats.finish_reason = reason

    def tell(self) -> None:
        """Call the listener, if there is one."""
        if self.listener is not None:
            self.listener()
