"""How many ids a step should draft: as many as pay, by what steps cost and how often drafts are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping

MOST_DRAFTED = 15  # ids: with the token before them 16 rows, for which the machines have kernels of their own
MARGIN = 1.1  # by which drafting must promise more tokens a second
SMOOTHING = 0.25  # weight of the newest step in the averages
GUESSED_SLOPE = 0.15  # what a further row costs, in steps of one row, until it has been measured
SHORTEST_REST = 64  # tokens without drafts of a model, when they have ceased to pay
LONGEST_REST = 1024
TRIAL = 4  # rounds behind a rest in which drafts are made to see whether they pay again


class StepCosts:
    """Seconds of decode steps by their number of rows, averaged. One for all sequences of a machine."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._begun: set[int] = set()  # numbers of rows that have occurred once, when kernels may be compiled

    def observe(self, n_rows: int, seconds: float) -> None:
        """Note a step of decode rows only."""
        if n_rows > MOST_DRAFTED + 1:
            return
        if n_rows not in self._begun:
            self._begun.add(n_rows)
            return
        old = self._seconds.get(n_rows, seconds)
        self._seconds[n_rows] = old + SMOOTHING * (seconds - old)

    @property
    def known(self) -> bool:
        """Whether a step has been measured."""
        return bool(self._seconds)

    def seconds(self, n_rows: int) -> float:
        """Seconds of a step of `n_rows` rows, measured or guessed by others; 1.0 if none was measured."""
        return self._estimate(n_rows)

    def relative(self, n_rows: int, base: int) -> float:
        """The cost of a step of `n_rows` rows, in steps of `base` rows, measured or guessed in between."""
        return self._estimate(n_rows) / self._estimate(base)

    def shares(self, base: int) -> Callable[[int], float]:
        """`share` beside `base` rows, for any number of them."""
        alone = self._estimate(base)
        return lambda n_rows: 1 + base * (self._estimate(base + n_rows) / alone - 1)

    def share(self, n_rows: int, base: int) -> float:
        """The cost of `n_rows` rows beside `base` others, one of which is the sequence's own, in what that
        one costs without them."""
        return 1 + base * (self.relative(base + n_rows, base) - 1)

    def _estimate(self, n_rows: int) -> float:
        known = self._seconds
        if n_rows in known:
            return known[n_rows]
        below = max((n for n in known if n < n_rows), default=0)
        above = min((n for n in known if n > n_rows), default=0)
        if below and above:
            share = (n_rows - below) / (above - below)
            return known[below] + share * (known[above] - known[below])
        nearest = below or above
        seconds = known[nearest] if nearest else 1.0
        return seconds * (1 + GUESSED_SLOPE * (n_rows - 1)) / (1 + GUESSED_SLOPE * (max(nearest, 1) - 1))


class Acceptance:
    """How often the first id of a draft is right, by the kind of draft; each sequence has its own.

    That of n-grams is measured also where nothing is drafted, since what a draft would have been costs
    nothing to look up.
    """

    def __init__(self, priors: Mapping[int, float]) -> None:
        self._rates = dict(priors)

    def observe(self, kind: int, right: bool) -> None:
        """Note whether the first id of a draft of a kind was right."""
        self._rates[kind] += SMOOTHING / 2 * (right - self._rates[kind])

    def best_length(
        self, kind: int, following: int, cost: Callable[[int], float], most: int
    ) -> tuple[int, float]:
        """The number of ids to draft, at most `most`: that with the most tokens a second, and how many times
        those without drafts it promises. (0, MARGIN) if drafting does not pay.

        `cost(n)` is what a sequence costs in a step with n drafted ids, and to draft them, in what it costs
        without: 1 at least. The first id is right as often as drafts of `kind` are, those behind as often as
        those of `following`.
        """
        first, then = self._rates[kind], self._rates[following]
        endless = 1.0 / max(1.0 - then, 1e-9)  # ids of a draft without end, if its first one is right
        tokens, right, best, length = 1.0, first, MARGIN, 0
        for n in range(1, most + 1):
            tokens += right
            right *= then
            gain = tokens / cost(n)
            if gain > best:
                best, length = gain, n
            if tokens + right * endless <= best:  # what more ids could bring, if they cost nothing
                break
        return length, best


class Rests:
    """When to stop trying drafts that cost something to make, and when to try again: behind rests that
    double as long as they do not pay."""

    def __init__(self) -> None:
        self._rest = SHORTEST_REST
        self._until = 0  # the number of ids at which a rest ends
        self._trials = 0

    def length(self, n_ids: int, wanted: int, most: int) -> int:
        """How many ids to draft behind `n_ids`, if `wanted` would pay: in a trial a few anyway."""
        if wanted:
            if not self._trials:
                self._rest = SHORTEST_REST
            return wanted
        if self._trials:
            self._trials -= 1
            return min(2, most)
        if n_ids >= self._until:
            if self._until:
                self._trials = TRIAL - 1
            first, self._until = not self._until, n_ids + self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
            return 0 if first else min(2, most)
        return 0
