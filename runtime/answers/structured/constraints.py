"""Constraints for the answers of one model, made of the forms that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....tokenizer import Tokenizer
from ...engine.constraint import Constraint

if TYPE_CHECKING:
    from .response_format import ResponseFormat
    from .vocabulary import Vocabulary


class Constraints:
    """Makes constraints for one model, which share its vocabulary. A plain request makes none, and imports
    nothing of it."""

    def __init__(self, tokenizer: Callable[[], Tokenizer], end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._vocabulary: Vocabulary | None = None

    def of(self, given: Any) -> Constraint | None:
        """What keeps one answer to a form, see `ResponseFormat.of`; None for None.

        Raises ConstraintError, and TokenizerError if the model has no tokenizer."""
        form = form_of(given)
        if form is None:
            return None
        from .guided import GuidedConstraint
        from .vocabulary import Vocabulary

        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self._tokenizer(), self._end_ids)
        return GuidedConstraint(self._vocabulary, form.grammar)


def form_of(given: Any) -> ResponseFormat | None:
    """`ResponseFormat.of`, which is imported for something only."""
    if given is None:
        return None
    from .response_format import ResponseFormat

    return ResponseFormat.of(given)


def told(messages: Sequence[Mapping[str, Any]] | str, form: ResponseFormat | None) -> Any:
    """`messages` with the instruction of a form; a text is the message of a user."""
    if form is None:
        return messages
    return form.told([{"role": "user", "content": messages}] if isinstance(messages, str) else messages)
