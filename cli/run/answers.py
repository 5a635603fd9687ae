"""Several answers to one prompt, and answers with the log probabilities of their tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from ..console import terminal
from ..console.options import TextOrJson
from ..console.safe_text import as_json
from ..console.table import table
from ..generation.repetition import RepetitionDetector
from ..generation.reply import (
    INTERRUPTED,
    LOOP,
    Reply,
    exit_code,
    reply_facts,
    show_stats,
    stats_facts,
    why_cut,
)

if TYPE_CHECKING:
    from ...runtime.answers.structured.response_format import ResponseFormat
    from ...runtime.engine.sampling.logprobs import TokenLogprobs
    from ...runtime.engine.sampling.params import SamplingParams
    from ...runtime.model.model import Model
    from ..generation.options import GenerationOptions

MOST_ANSWERS = 256
SEPARATOR = "---"  # the line between two answers


class Answer:
    """One of the answers, while it is written."""

    def __init__(
        self, model: Model, ids: list[int], params: SamplingParams, form: ResponseFormat | None
    ) -> None:
        self.logprobs: list[TokenLogprobs] = []
        self.text = ""
        self.done = False
        self._looped = False
        self._repeats = RepetitionDetector().push
        self._tokens = model.submit(ids, params, response_format=form)

    def go_on(self) -> None:
        """Take the next token."""
        event = next(self._tokens, None)
        if event is None:
            self.done = True
            return
        self.text += event.text
        if event.logprobs is not None:
            self.logprobs.append(event.logprobs)
        if event.text and self._repeats(event.text):
            self._looped = self.done = True
            self.close()

    def close(self) -> None:
        """Take no more tokens."""
        self._tokens.close()

    def reply(self) -> Reply:
        """What there is of it."""
        reason = LOOP if self._looped else str(self._tokens.finish_reason or INTERRUPTED)
        stats = self._tokens.stats
        return Reply(self.text, reason, stats_facts(stats), stats.complete)


def write_answers(
    model: Model, name: str, ids: list[int], options: GenerationOptions, params: SamplingParams, n: int
) -> None:
    """Write `n` answers as the options say; ends the command with 130 if Ctrl-C cut one, and with 6 if one
    does not have the form that it must have.

    They are computed side by side, as far as the model does that, and the first is shown as it comes. The
    seeds are `params.seed` and the numbers that follow it.
    """
    plain = options.output is TextOrJson.text
    shown = _Shown() if plain else None
    try:
        update = shown.update if shown else lambda answers: None
        answers = generate_answers(model, ids, params, n, update, options.response_format)
    except Exception:
        if shown:
            shown.break_off()
        raise
    replies = [answer.reply() for answer in answers]
    if shown:
        shown.finish(answers)
    else:
        facts = [_facts(model, name, *each) for each in zip(answers, replies, strict=True)]
        terminal.write(as_json(facts[0] if n == 1 else facts) + "\n")
    for number, (answer, reply) in enumerate(zip(answers, replies, strict=True), 1):
        which = f"answer {number}: " if n > 1 else ""
        if which and ((plain and answer.logprobs) or options.stats):
            terminal.note(which.rstrip())
        if plain and answer.logprobs:
            terminal.tell(_logprobs_table(model, answer.logprobs).rstrip("\n"))
        if cut := why_cut(reply, model, cure="--repeat-penalty 1.1"):
            terminal.remark(f"({which}{cut})")
        if options.stats:
            show_stats(reply)
    if code := max(map(exit_code, replies), default=0):
        raise typer.Exit(code)


def generate_answers(
    model: Model,
    ids: list[int],
    params: SamplingParams,
    n: int,
    update: Callable[[list[Answer]], None],
    form: ResponseFormat | None = None,
) -> list[Answer]:
    """Up to `n` answers; Ctrl-C ends them but keeps what there is. `update` gets them after each token."""
    answers: list[Answer] = []
    try:
        seeds = iter([params.seed + i if params.seed is not None else None for i in range(n)])
        while True:
            live = [answer for answer in answers if not answer.done]
            for seed in _first(seeds, model.engine.table.max_sequences - len(live)):
                answers.append(Answer(model, ids, replace(params, seed=seed), form))
                live.append(answers[-1])
            if not live:
                return answers
            for answer in live:  # one token each, so that none runs ahead of what ends it
                answer.go_on()
                update(answers)
    except KeyboardInterrupt:
        return answers
    finally:
        for answer in answers:
            answer.close()


def _first(items: Iterator[Any], n: int) -> Iterator[Any]:
    """The first `n` of the items that are left, if there are so many."""
    for _, item in zip(range(n), items, strict=False):
        yield item


class _Shown:
    """Writes answers to stdout in their order, each piece as soon as those in front of it are complete."""

    def __init__(self) -> None:
        self._sink = terminal.ModelText()
        self._n_ended = 0
        self._separated = True  # from the answer in front

    def update(self, answers: list[Answer]) -> None:
        """Write what has come."""
        while self._n_ended < len(answers):
            answer = answers[self._n_ended]
            self._write(answer)
            if not answer.done:
                return
            self._end()

    def finish(self, answers: list[Answer]) -> None:
        """Write all that is left, also of answers that are incomplete."""
        for answer in answers[self._n_ended :]:
            self._write(answer)
            if answer.text or answer.done:
                self._end()

    def break_off(self) -> None:
        """End the line that an error interrupts."""
        if self._sink.text:
            self._sink.finish()

    def _write(self, answer: Answer) -> None:
        new = answer.text[len(self._sink.text) :]
        if (new or answer.done) and not self._separated:
            terminal.write(SEPARATOR + "\n")
            self._separated = True
        if new:
            self._sink.write(new)

    def _end(self) -> None:
        self._sink.finish()
        self._sink = terminal.ModelText()
        self._n_ended += 1
        self._separated = False


def _facts(model: Model, name: str, answer: Answer, reply: Reply) -> dict[str, Any]:
    """The object that `-o json` prints for an answer."""
    facts = reply_facts(name, reply)
    if answer.logprobs:
        facts["logprobs"] = [
            _token_facts(model, token.id, token.logprob)
            | {"top": [_token_facts(model, id_, logprob) for id_, logprob in token.top]}
            for token in answer.logprobs
        ]
    return facts


def _token_facts(model: Model, id_: int, logprob: float) -> dict[str, Any]:
    tokenizer = model.tokenizer
    spelled = tokenizer.token_text(id_)
    raw = spelled.encode() if tokenizer.is_special(id_) else tokenizer.token_bytes(id_)
    return {"id": id_, "token": spelled, "bytes": list(raw), "logprob": round(logprob, 6)}


def _logprobs_table(model: Model, tokens: list[TokenLogprobs]) -> str:
    """A row for each token: its text, its probability, and the most likely ones in its place."""

    def spelled(id_: int) -> str:
        return repr(model.tokenizer.token_text(id_))

    rows = [
        [
            spelled(token.id),
            f"{100 * math.exp(token.logprob):.2f} %",
            f"{token.logprob:.3f}",
            "  ".join(f"{spelled(id_)} {100 * math.exp(logprob):.2f} %" for id_, logprob in token.top),
        ]
        for token in tokens
    ]
    n = 4 if any(token.top for token in tokens) else 3
    header = ["token", "probability", "logprob", "likeliest in its place"]
    return table(header[:n], [row[:n] for row in rows], right=(1, 2))
