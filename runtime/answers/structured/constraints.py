"""Constraints for the answers of one model, made of the forms that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ....tokenizer import Tokenizer
from ...engine.constraint import Constraint
from ...engine.errors import ConstraintError

if TYPE_CHECKING:
    from ....tokenizer.chat.output.call_style import CallStyle
    from .response_format import ResponseFormat
    from .vocabulary import Vocabulary


@dataclass(frozen=True)
class Thinking:
    """The marks around what a model thinks before it answers. `begun`: where its prompt ends, it does."""

    opening: str
    closing: str
    begun: bool


@dataclass(frozen=True)
class Thoughts:
    """What may enclose thinking: the marks that close it by those that open it. `begun`: the mark that is
    open where the prompt ends, "" for none."""

    marks: Mapping[str, str] = field(default_factory=dict)
    begun: str = ""


NO_THOUGHTS = Thoughts()


class Constraints:
    """Makes constraints for one model, which share its vocabulary. A plain request makes none, and imports
    nothing of it."""

    def __init__(self, tokenizer: Callable[[], Tokenizer], end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._made: Vocabulary | None = None

    @property
    def _vocabulary(self) -> Vocabulary:
        if self._made is None:
            from .vocabulary import Vocabulary

            self._made = Vocabulary(self._tokenizer(), self._end_ids)
        return self._made

    def of(
        self, given: Any, thinking: Thinking | None = None, written: Sequence[int] = ()
    ) -> Constraint | None:
        """What keeps one answer to a form, see `ResponseFormat.of`, behind what the model thinks; None for
        None. `written`: the tokens that there are of the answer already.

        Raises ConstraintError, and TokenizerError if the model has no tokenizer."""
        form = form_of(given)
        return None if form is None else self._of_grammar(form.grammar, thinking, written)

    def calls(
        self,
        tools: Sequence[Mapping[str, Any]],
        style: CallStyle,
        parallel: bool = True,
        thinking: Thinking | None = None,
        written: Sequence[int] = (),
    ) -> Constraint:
        """What makes an answer call one of `tools`, JSON schemas of functions, or with `parallel` several.

        Raises ConstraintError for parameters that are not supported in this style.
        """
        from .calls.grammar import calls_grammar

        grammar = calls_grammar(tools, style, self._tokenizer(), parallel)
        return self._of_grammar(grammar, None if style.thought else thinking, written)

    def of_or_calls(
        self,
        form: ResponseFormat,
        tools: Sequence[Mapping[str, Any]],
        style: CallStyle,
        parallel: bool = True,
        thinking: Thinking | None = None,
        written: Sequence[int] = (),
    ) -> Constraint:
        """What keeps an answer to a form, or makes it call some of `tools` instead."""
        from .calls.grammar import calls_grammar, either

        try:
            calls = calls_grammar(tools, style, self._tokenizer(), parallel)
        except ConstraintError:  # parameters that are not supported in this style
            calls = ""
        grammar = either(form.grammar, calls) if calls and not style.thought else form.grammar
        return self._of_grammar(grammar, thinking, written)

    def calls_if_any(
        self,
        tools: Sequence[Mapping[str, Any]],
        style: CallStyle,
        mark: str,
        parallel: bool = True,
        thoughts: Thoughts = NO_THOUGHTS,
        written: Sequence[int] = (),
    ) -> Constraint | None:
        """What keeps calls of `tools` valid from the `mark` on that begins them, and leaves the rest of an
        answer free. None for no mark, and for parameters that are not supported in this style.
        """
        from .calls.grammar import opened_grammar

        if not mark:
            return None
        try:
            grammar = opened_grammar(tools, style, mark, self._tokenizer(), parallel)
        except ConstraintError:
            return None
        from .guided import GuidedConstraint
        from .within_marks import WithinMarks

        return WithinMarks(
            lambda: GuidedConstraint(self._vocabulary, grammar),
            self._tokenizer(), mark, once=not parallel, thoughts=thoughts, written=written,
        )  # fmt: skip

    def _of_grammar(self, grammar: str, thinking: Thinking | None, written: Sequence[int]) -> Constraint:
        from .guided import GuidedConstraint

        if thinking is None:
            return GuidedConstraint(self._vocabulary, grammar, written)
        from .phases import AfterThinking

        return AfterThinking(
            GuidedConstraint(self._vocabulary, grammar), self._tokenizer(), thinking, written
        )


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
