"""The answers of a beam search, the best first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import typer

from ..console import terminal
from ..console.options import TextOrJson
from ..console.safe_text import as_json
from ..generation.prefill import PrefillProgress
from ..generation.reply import INTERRUPTED, Reply, reply_facts, show_stats, stats_facts, why_cut
from .answers import SEPARATOR

if TYPE_CHECKING:
    from ...runtime.answers.beams import BeamAnswer, BeamAnswers
    from ...runtime.engine.sampling.beam_search import BeamParams
    from ...runtime.engine.sampling.params import SamplingParams
    from ...runtime.model.model import Model
    from ..generation.options import GenerationOptions


MOST_BEAMS = 256


class EarlyStopping(StrEnum):
    false = "false"
    true = "true"
    never = "never"


@dataclass(frozen=True)
class BeamFlags:
    """What `--beams` and the flags beside it say; `n` is the number of answers to write."""

    k: int
    length_penalty: float
    early_stopping: EarlyStopping
    n: int

    def params(self, sampling: SamplingParams) -> BeamParams:
        """BeamParams; a usage error for values out of range, and for what a search cannot have."""
        from ...runtime.engine.sampling.beam_search import BeamParams, check_sampling

        if self.n > self.k:
            raise typer.BadParameter(f"-N {self.n} asks for more answers than the {self.k} of --beams")
        stops: bool | Literal["never"] = self.early_stopping is EarlyStopping.true
        if self.early_stopping is EarlyStopping.never:
            stops = "never"
        try:
            check_sampling(sampling)
            return BeamParams(self.k, self.length_penalty, stops)
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None


def write_beams(
    model: Model,
    name: str,
    ids: list[int],
    options: GenerationOptions,
    params: SamplingParams,
    beams: BeamParams,
    n: int,
) -> None:
    """Write the `n` best answers as the options say; ends the command with 130 if Ctrl-C cut the search."""
    search = model.submit_beams(ids, beams, params)
    answers = _wait(search)[:n]
    replies = [_reply(search, answer) for answer in answers]
    if options.output is TextOrJson.json:
        facts = [_facts(name, answer, reply) for answer, reply in zip(answers, replies, strict=True)]
        terminal.write(as_json(facts if n > 1 else facts[0]) + "\n")
    else:
        for number, answer in enumerate(answers):
            if number:
                terminal.write(SEPARATOR + "\n")
            sink = terminal.ModelText(wrap=not options.no_wrap)
            sink.write(answer.text)
            sink.finish()
    for number, reply in enumerate(replies, 1):
        which = f"answer {number}: " if n > 1 else ""
        if cut := why_cut(reply, model, cure="--repeat-penalty 1.1"):
            terminal.remark(f"({which}{cut})")
    if options.stats:
        show_stats(replies[0])
    if search.stats.finish_reason == INTERRUPTED:
        raise typer.Exit(130)


def _wait(search: BeamAnswers) -> list[BeamAnswer]:
    """The answers when the search ends, or what there is of them when Ctrl-C ends it."""
    try:
        with PrefillProgress(lambda: search.stats):
            return search.result()
    except KeyboardInterrupt:
        answers = search.answers
        search.close()
        return answers


def _reply(search: BeamAnswers, answer: BeamAnswer) -> Reply:
    stats = stats_facts(search.stats) | {"new_tokens": len(answer.ids)}
    return Reply(answer.text, answer.finish_reason, stats)


def _facts(name: str, answer: BeamAnswer, reply: Reply) -> dict[str, Any]:
    """The object that `-o json` prints for an answer."""
    score = {"score": round(answer.score, 6), "logprob": round(answer.logprob, 6)}
    return reply_facts(name, reply) | score
