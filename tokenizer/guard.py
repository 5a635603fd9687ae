"""Keeps special tokens that a user typed apart from those that a chat template writes.

Before the template sees a message, the first character of every special token in it is replaced by a
stand-in, so that the rendered prompt contains no special token there; after rendering, stand-ins become the
characters again. Lengths do not change, nor does any other text that the template sees.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from .added import AddedToken, AddedTokens

_FIRST_STAND_IN = 0xF0000  # the private-use planes
_LAST_STAND_IN = 0x10FFFD


class SpecialGuard:
    """The special tokens of a vocabulary, by every way in which a text can have a part in one."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self.spellings = known = sorted(filter(None, spellings))
        self._tokens = AddedTokens(AddedToken(0, spelling, special=True) for spelling in known)
        self._backwards = sorted(spelling[::-1] for spelling in known)
        self._longest = max(map(len, known), default=0)
        self._characters = sorted(set("".join(known)))

    def stand_ins(self, used: str) -> StandIns:
        """Stand-ins that do not occur in `used`, all the text that goes into a prompt."""
        taken = {ord(c) for c in set(used) if ord(c) >= _FIRST_STAND_IN}
        free = (code for code in range(_FIRST_STAND_IN, _LAST_STAND_IN + 1) if code not in taken)
        return StandIns(self, dict(zip(self._characters, map(chr, free), strict=False)))

    def marked(self, text: str, whole_only: bool) -> set[int]:
        """The positions to disguise: the start of each special token and, without `whole_only`, of a part of
        one at either end of the text, which the text around it could complete."""
        positions = set(self._tokens.starts(text))
        if not whole_only:
            for n in range(1, min(self._longest, len(text) + 1)):
                if _begins_one(text[-n:], self.spellings):
                    positions.add(len(text) - n)
                if _begins_one(text[:n][::-1], self._backwards):
                    positions.add(0)
        return positions


def _begins_one(start: str, ordered: list[str]) -> bool:
    """Whether one of these texts, which are sorted, begins with `start` and goes on behind it."""
    next_one = bisect_right(ordered, start)
    return next_one < len(ordered) and ordered[next_one].startswith(start)


class StandIns:
    """Disguises special tokens in messages, and brings them out again."""

    def __init__(self, guard: SpecialGuard, stand_ins: dict[str, str]) -> None:
        self._guard = guard
        self._stand_ins = stand_ins
        self._characters = str.maketrans({stand_in: c for c, stand_in in stand_ins.items()})

    def disguise(self, value: Any, role: bool = False, exempt: Iterable[str] = ()) -> Any:
        """A message or any part of it, with all its texts disguised.

        A role is often half of a special token by design, so of it only whole tokens are.
        Tokens in `exempt` stay as they are.
        """
        if isinstance(value, str):
            return self._disguise_text(value, role, exempt)
        if isinstance(value, dict):
            return {
                self.disguise(key, True): self.disguise(item, key == "role", exempt)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.disguise(item, role, exempt) for item in value]
        return value

    def _disguise_text(self, text: str, whole_only: bool, exempt: Iterable[str]) -> str:
        positions = self._guard.marked(text, whole_only)
        if not positions:
            return text
        characters = list(text)
        for i in positions:
            if not any(text.startswith(spelling, i) for spelling in exempt):
                characters[i] = self._stand_ins[characters[i]]
        return "".join(characters)

    def restore(self, text: str) -> str:
        return text.translate(self._characters)
