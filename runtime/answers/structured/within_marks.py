"""A constraint that holds from a mark on, such as the one that begins tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....tokenizer import Tokenizer
from ...engine.constraint import Constraint
from .constraints import NO_THOUGHTS, Thoughts
from .phases import MarkFinder


class WithinMarks:
    """Leaves text free, and keeps to a form what follows a mark, as often as there is one; a Constraint for
    an engine. Marks in thinking do not count.

    `form` makes the constraint of what follows the mark. `once`: the answer ends behind the first one.
    `written`: the tokens that there are of the answer already.
    """

    def __init__(
        self,
        form: Callable[[], Constraint],
        tokenizer: Tokenizer,
        mark: str,
        once: bool,
        thoughts: Thoughts = NO_THOUGHTS,
        written: Sequence[int] = (),
    ) -> None:
        self._form = form
        self._tokenizer = tokenizer
        self._mark = mark
        self._once = once
        self._thoughts = thoughts
        self._written = [*written]
        self._text = MarkFinder(tokenizer, [mark, *thoughts.marks])
        self._inner: Constraint | None = None
        self.restart()

    @property
    def complete(self) -> bool:
        """Whether no form is left open."""
        return self._inner is None

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self._over

    def masks(self, ids: Sequence[int] = ()) -> list[np.ndarray | None]:
        """Which tokens may come here and behind each of `ids`, see Constraint."""
        return [None] * (len(ids) + 1) if self._inner is None else self._inner.masks(ids)

    def n_allowed(self, ids: Sequence[int]) -> int:
        """How many of `ids` may follow, as long as that is in one phase."""
        if self._inner is None:
            return self._finder.count_before(ids)
        return max(0, self._inner.n_allowed(ids) - 1)  # the last one may end the form

    def accept(self, id_: int) -> None:
        """Go on behind a token."""
        if self._inner is not None:
            self._inner.accept(id_)
            if self._inner.ended:
                self._inner, self._over = None, self._once
                self._finder.tail = b""
            return
        self._finder.tail = self._finder.behind(id_)
        if not self._finder.ends_mark(self._finder.tail):
            return
        text = self._finder.tail.rstrip()
        if self._finder is not self._text:
            self._look_for(self._text)
        elif text.endswith(self._mark.encode()):
            self._inner = self._form()
        else:
            opening = next(mark for mark in self._thoughts.marks if text.endswith(mark.encode()))
            self._look_for(MarkFinder(self._tokenizer, [self._thoughts.marks[opening]]))

    def _look_for(self, finder: MarkFinder) -> None:
        self._finder = finder
        finder.tail = b""

    def forced(self) -> list[int]:
        """The tokens that follow for sure."""
        return [] if self._inner is None else self._inner.forced()

    def restart(self) -> None:
        """Go back to the start."""
        begun = self._thoughts.begun
        closing = MarkFinder(self._tokenizer, [self._thoughts.marks[begun]]) if begun else self._text
        self._look_for(closing)
        self._inner, self._over = None, False
        for id_ in self._written:
            self.accept(id_)
