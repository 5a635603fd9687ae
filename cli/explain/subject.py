"""What is explained: a prompt, the model, and what the model computes of it, once for all views."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ...runtime.engine.sampling.params import SamplingParams
    from ...runtime.engine.stats import GenerationStats
    from ...runtime.inspection.data import Spelled
    from ...runtime.inspection.inspection import Inspection
    from ...runtime.inspection.observed import ObservedAnswer
    from ...runtime.model.model import Model
    from ...tokenizer import Tokenizer

MOST_ROWS = 128  # rows whose attention is looked at, the last ones


@dataclass(frozen=True)
class Choices:
    """What a user chose: how many tokens to show of each distribution, whose attention (None: of the most
    telling head), which position's distribution (of the answer, from 0), and how many beams."""

    top: int
    layer: int | None
    head: int | None
    position: int
    beams: int
    max_tokens: int


class Subject:
    """A prompt of a loaded model. `text` is what the user wrote, `ids` the whole prompt, and `given` the
    tokens that an answer already has (None: the model is to write one)."""

    def __init__(
        self,
        model: Model,
        name: str,
        text: str,
        ids: Sequence[int],
        params: SamplingParams,
        choices: Choices,
        views: Collection[str],
        given: Sequence[int] | None = None,
    ) -> None:
        self.model = model
        self.name = name
        self.text = text
        self.ids = list(ids)
        self.params = params
        self.choices = choices
        self._views = views
        self._given = given
        self.stats: GenerationStats | None = None  # of the answer, if the model has written it here

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @cached_property
    def spelled(self) -> Spelled:
        from ...runtime.inspection.data import Spelled

        return Spelled(self.tokenizer)

    @cached_property
    def answer(self) -> ObservedAnswer:
        """The answer, with what `inspect` shows of it for the views that there are."""
        from ...runtime.inspection.observed import ObservedAnswer

        given = self._given
        if given is None:
            new = tuple(self.model.generate(self.ids, self.params))
            self.stats = self.model.stats
            reason = self.stats.finish_reason
        else:
            new, reason = tuple(given), None
        whole = [*self.ids, *new]
        shown: dict[str, Any] = {"top": self.choices.top, "lens": "lens" in self._views}
        if "attention" in self._views:
            shown["attention"] = self._attention(len(whole))
        seen = self.model.inspect(whole, **shown)
        return ObservedAnswer(tuple(self.ids), new, seen, reason)

    @property
    def seen(self) -> Inspection:
        return self.answer.seen

    def _attention(self, n: int) -> Any:
        from ...runtime.inspection.attention import AttentionChoice

        rows = range(max(0, n - MOST_ROWS), n)
        return AttentionChoice(layers=None, heads=None, rows=rows)

    @cached_property
    def distribution(self) -> tuple[int, Any]:
        """The position of the answer whose distribution is taken apart, and its logits, float32 [vocab]."""
        at = self.choices.position
        n = len(self.answer.ids)
        if not 0 <= at <= n:
            raise typer.BadParameter(
                f"the answer has {n} tokens, numbered from 0; {n} is what follows them",
                param_hint="--position",
            )
        before = [*self.ids, *self.answer.ids[:at]]
        logits = self.model.logits(before)[-1]
        return at, logits[: self.tokenizer.vocab_size]

    def token_of(self, id_: int) -> dict[str, Any]:
        return self.spelled.token(int(id_))
