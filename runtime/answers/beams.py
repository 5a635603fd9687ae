"""The answers of a beam search, as text."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from ...tokenizer import Tokenizer
from ..engine.beams.generation import BeamGeneration
from ..engine.sampling.beam_search import Beam
from ..engine.stats import FinishReason, GenerationStats
from .token_reader import TokenReader, shown


@dataclass(frozen=True)
class BeamAnswer:
    """An answer that a beam search found.

    `text` ends before the first stop string. `ids` are all its tokens, without an end token; `logprob` is the
    sum of their log probabilities, that of the end token among them, and `score` that sum by the length
    penalty.
    """

    text: str
    ids: list[int]
    score: float
    logprob: float
    finish_reason: FinishReason


class BeamAnswers:
    """A beam search that runs beside other requests; made by `Model.submit_beams`.

    `result()` waits for the answers, `await` does so in a coroutine, and `close` ends the search.
    """

    def __init__(self, generation: BeamGeneration, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self.generation = generation
        self._tokenizer = tokenizer
        self._stops = stops

    @property
    def stats(self) -> GenerationStats:
        """Token counts and times; `new_tokens` are those of the best answer."""
        return self.generation.stats

    @property
    def answers(self) -> list[BeamAnswer]:
        """What there is of them: before the end, those that are complete and, behind them, those that are
        not, as "interrupted"."""
        return self._read(self.generation.beams)

    def result(self) -> list[BeamAnswer]:
        """The answers, the best first. Raises BadLogits, ModelClosed, or an error of the machine."""
        return self._read(self.generation.result())

    def __await__(self) -> Generator[Any, None, list[BeamAnswer]]:
        beams = yield from self.generation.__await__()
        return self._read(beams)

    def close(self) -> None:
        """End the search."""
        self.generation.close()

    def _read(self, beams: list[Beam]) -> list[BeamAnswer]:
        return [self._answer(beam) for beam in beams]

    def _answer(self, beam: Beam) -> BeamAnswer:
        reader, text, reason = TokenReader(self._tokenizer, self._stops), "", beam.finish_reason
        for token in beam.ids:
            text += shown(reader.push(token))
        text += shown(reader.finish())
        if reader.stopped:
            reason = "stop_string"
        return BeamAnswer(text, beam.ids, beam.score, beam.logprob, reason)
