"""What steps cost: the statistics of sequences, the averages by which steps are planned, and the timeline."""

from __future__ import annotations

from collections.abc import Sequence as List
from time import monotonic

from ..speculation.policy import StepCosts
from ..timeline import StepPart
from .batching import Rows

LEAST_MIXED_ROWS = 32  # prefill rows in a step that decodes as well
DECODE_STEPS = 3.0  # times as long as one of decode rows alone may a step take that has prefill rows as well
EVEN_SECONDS = 0.02  # that a step may always take: nobody sees tokens come one by one then
GROWTH = 1.25  # of the number of prefill rows from step to step, at most
# Weights of the newest step in the averages of step times: of one that took less than these, and of one that
# took more, since a step may take ten times as long for what has nothing to do with its rows (a shape of step
# that is new to a GPU, another process)
FALLING, RISING = 0.5, 0.1


class StepTimes:
    """How long steps take; `costs` are those of decode steps by their number of rows."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self._row_seconds = 0.0  # of a row in a step of prefill rows only
        self._decode_seconds = 0.0  # of a step of decode rows only
        self._mixed_rows = 0.0  # of a step that takes as long as it may; 0: there was none yet

    @property
    def mixed_rows(self) -> int:
        """Prefill rows beside decode rows: so many that the time between tokens stays even. What a row costs
        depends on how many there are, in stairs, so that the number is found by trying more and less."""
        if self._mixed_rows:
            return int(self._mixed_rows)
        if not self._row_seconds or not self._decode_seconds:
            return 4 * LEAST_MIXED_ROWS
        return max(LEAST_MIXED_ROWS, int((DECODE_STEPS - 1) * self._decode_seconds / self._row_seconds))

    def measure(self, n_rows: int, n_prefill: int, seconds: float) -> None:
        """Note a step of so many rows, of which `n_prefill` were prefill."""
        if n_prefill == 0:
            self.costs.observe(n_rows, seconds)
            self._decode_seconds = _moved(self._decode_seconds, seconds)
        elif n_prefill == n_rows and n_prefill >= LEAST_MIXED_ROWS:
            self._row_seconds = _moved(self._row_seconds, seconds / n_prefill)
        elif n_prefill < n_rows and self._decode_seconds:
            self._adapt(n_prefill, seconds)

    def _adapt(self, n_prefill: int, seconds: float) -> None:
        """Take more or fewer prefill rows in mixed steps, behind one that had about as many as it could."""
        most = self.mixed_rows
        change = max(DECODE_STEPS * self._decode_seconds, EVEN_SECONDS) / seconds
        if n_prefill >= (0.75 if change > 1 else 0.5) * most:
            self._mixed_rows = max(LEAST_MIXED_ROWS, most * min(GROWTH, max(1 / GROWTH, change)))


def _moved(average: float, newest: float) -> float:
    """The average of step times behind one more step; 0 if there was none."""
    if not average:
        return newest
    return average + (FALLING if newest < average else RISING) * (newest - average)


def count_step(rows: Rows, n_right: int, seconds: float, drafting_seconds: float) -> None:
    """Add a step to the statistics of the sequence of `rows`, of whose drafted ids `n_right` were right."""
    sequence, stats = rows.sequence, rows.sequence.stats
    decoding, n_new = stats.new_tokens > 0, sequence.n_new
    n_given = n_new - stats.new_tokens  # an end token is none of them, forced ones are
    stats.new_tokens = n_new
    if decoding:
        stats.decode_seconds += seconds + drafting_seconds
        stats.decode_steps += rows.chooses
        stats.decode_tokens += max(rows.chooses + n_right, n_given)
        if rows.drafted:
            stats.count_draft(rows.kind, len(rows.drafted), n_right)
    else:
        stats.prompt_seconds += seconds
        reached = min(rows.first + rows.n, sequence.n_prompt)
        stats.prefilled_tokens = max(0, reached - stats.cached_tokens)
        if rows.chooses:
            stats.time_to_first_token = stats.prompt_seconds
    sequence.changed_at = monotonic()


def parts_of(plan: List[Rows], right: List[int], page_size: int) -> list[StepPart]:
    """A step that has run as its timeline has it; the sequences are as they were in front of it."""
    return [
        StepPart(
            sequence=rows.sequence.arrival,
            kind="prefill" if rows.sequence.prefilling else "decode",
            first=rows.first,
            rows=rows.n,
            drafted=len(rows.drafted),
            right=n_right,
            pages=-(-(rows.first + rows.n) // page_size),
        )
        for rows, n_right in zip(plan, right, strict=True)
    ]
