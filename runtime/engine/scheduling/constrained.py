"""The constraint of a sequence, kept in step with its tokens; masks come from a thread in the background."""

from __future__ import annotations

from collections.abc import Sequence as List

from ..constraint import Constraint
from ..errors import ConstraintError
from ..sampling.mask import Mask, mask_of
from .background import Background, Job


class ConstrainedAnswer:
    """What may follow the tokens of one answer.

    An interrupt may come between any two statements, also between those that choose a token and tell the
    constraint: `follow` then tells it all tokens anew.
    """

    def __init__(self, constraint: Constraint, background: Background, n_tokens: int) -> None:
        self._constraint = constraint
        self._background = background
        self._n_tokens = n_tokens  # ids that may be drawn
        self._taken = 0  # tokens of the answer that the constraint has been told
        self._settled = True  # false while that changes
        self._masks: Job[list[Mask | None]] | None = None  # here and behind each drafted id
        self._computing = False  # masks that were not taken yet
        self._error: ConstraintError | None = None

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        return self._constraint.complete

    @property
    def ended(self) -> bool:
        """Whether the answer must end here."""
        return self._constraint.ended

    def follow(self, ids: List[int], n_prompt: int) -> None:
        """Bring the constraint behind `ids`, if an interrupt has left it elsewhere. What goes wrong with that
        is raised by `masks`."""
        if self._settled and self._taken == len(ids) - n_prompt:
            return
        self._wait()
        self._settled = False
        try:
            self._constraint.restart()
            for id_ in ids[n_prompt:]:
                self._constraint.accept(id_)
        except ConstraintError as error:
            self._error = error
        self._taken = len(ids) - n_prompt
        self._settled = True

    def allowed(self, drafted: list[int]) -> list[int]:
        """As many of the drafted ids as may follow."""
        self._wait()
        return drafted[: self._constraint.n_allowed(drafted)] if drafted else drafted

    def prepare(self, drafted: List[int]) -> None:
        """Begin to compute the masks here and behind each of the drafted ids."""
        self._wait()
        self._computing = True
        self._masks = self._background.start(lambda: self._compute(drafted))

    def _compute(self, drafted: List[int]) -> list[Mask | None]:
        return [mask_of(bits, self._n_tokens) for bits in self._constraint.masks(drafted)]

    def masks(self) -> list[Mask | None]:
        """The masks that `prepare` has begun to compute, when they are there."""
        if self._error is not None:
            raise self._error
        assert self._masks is not None
        masks = self._masks.result()
        self._computing = False
        return masks

    def accept(self, id_: int) -> None:
        """Go on behind a token that has been chosen."""
        self._settled = False
        self._constraint.accept(id_)
        self._taken += 1
        self._settled = True

    def forced(self) -> list[int]:
        """The tokens that follow for sure."""
        return self._constraint.forced()

    def _wait(self) -> None:
        """Let masks be finished that nobody has taken, because their step was interrupted."""
        if self._computing:
            self._background.finish()
            self._computing = False
