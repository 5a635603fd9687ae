"""Drafts out of what is there: the ids that followed the last few ids where they stood before.

In answers that repeat much of the prompt (a file with one name changed, a summary, code), most tokens can be
looked up. (Saxena 2023, "Prompt Lookup Decoding"; llama.cpp's `lookup` example.)
"""

from __future__ import annotations

from collections.abc import Sequence

ORDERS = (5, 3, 2)  # lengths of the n-grams that are looked up, the longest first
FOLLOWING = 0  # the order of a draft that goes on where the one before was right to its end


class NgramDraft:
    """Drafts for one sequence, whose ids only grow."""

    def __init__(self) -> None:
        # For each order: n-gram → the place behind its latest occurrence, but for that at the end of the ids.
        self._places: dict[int, dict[tuple[int, ...], int]] = {order: {} for order in ORDERS}
        self._indexed = 0  # ids whose n-grams are in `_places`
        self._source = -1  # the place that the next id should repeat, if the last draft was right
        self._expected = 0  # the number of ids for which `_source` holds

    def find(self, ids: Sequence[int]) -> tuple[int, int]:
        """(order, place): the draft is what stands in `ids` from `place` on. Place -1: there is none."""
        self._index(ids)
        if self._source >= 0 and self._expected == len(ids):
            return FOLLOWING, self._source
        for order in ORDERS:
            if len(ids) > order:
                place = self._places[order].get(tuple(ids[-order:]))
                if place is not None:
                    return order, place
        return ORDERS[-1], -1

    def _index(self, ids: Sequence[int]) -> None:
        last = len(ids) - 1  # the n-gram that ends there is the one that is looked up
        for end in range(self._indexed, last):
            for order in ORDERS:
                if end + 1 >= order:
                    self._places[order][tuple(ids[end + 1 - order : end + 1])] = end + 1
        self._indexed = max(self._indexed, last)

    def observe(self, ids: Sequence[int], place: int, n_before: int) -> None:
        """Note what became of a draft: `ids` had `n_before` ids, and the draft was from `place` on."""
        right = 0
        while n_before + right < len(ids) and ids[n_before + right] == ids[place + right]:
            right += 1
        fits = place >= 0 and right == len(ids) - n_before
        self._source = place + right if fits else -1
        self._expected = len(ids)
