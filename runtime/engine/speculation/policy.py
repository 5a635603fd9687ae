"""How many ids a step should draft: as many as pay, by what steps cost and how often drafts are right."""

from __future__ import annotations

from collections.abc import Mapping

MOST_DRAFTED = 15  # ids: with the token before them 16 rows, for which the machines have kernels of their own
MARGIN = 1.1  # by which drafting must promise more tokens a second
SMOOTHING = 0.25  # weight of the newest step in the averages
GUESSED_SLOPE = 0.15  # what a further row costs, in steps of one row, until it has been measured


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

    def relative(self, n_rows: int, base: int) -> float:
        """The cost of a step of `n_rows` rows, in steps of `base` rows, measured or guessed in between."""
        return self._estimate(n_rows) / self._estimate(base)

    def _estimate(self, n_rows: int) -> float:
        known = self._seconds
        if n_rows in known:
            return known[n_rows]
        below = max((n for n in known if n < n_rows), default=0)
        above = min((n for n in known if n > n_rows), default=0)
        if below and above:
            share = (n_rows - below) / (above - below)
            return known[below] + share * (known[above] - known[below])
        one = known.get(1) or (known[below] if below else known[above] if above else 1.0)
        nearest = below or above
        return max(
            0.1 * one, (known[nearest] if nearest else one) + (n_rows - (nearest or 1)) * GUESSED_SLOPE * one
        )


class Acceptance:
    """How often the first id of a draft is right, by the kind of draft; each sequence has its own.

    It is measured also where nothing is drafted, since what a draft would have been costs nothing to look up.
    """

    def __init__(self, priors: Mapping[int, float]) -> None:
        self._rates = dict(priors)

    def observe(self, kind: int, right: bool) -> None:
        """Note whether the first id of a draft of a kind was right."""
        self._rates[kind] += SMOOTHING / 2 * (right - self._rates[kind])

    def best_length(self, kind: int, following: int, costs: StepCosts, base: int, most: int) -> int:
        """The number of ids to draft, at most `most`, beside `base` rows: that with the most tokens a second.

        The first id is right as often as drafts of `kind` are, those behind as often as those of `following`.
        """
        first, then = self._rates[kind], self._rates[following]
        tokens, right, best, length = 1.0, first, MARGIN, 0
        for n in range(1, most + 1):
            tokens += right
            right *= then
            gain = tokens / costs.relative(base + n, base)
            if gain > best:
                best, length = gain, n
        return length
