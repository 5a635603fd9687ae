"""POST /v1/completions: text that is continued as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Annotated, Any
from uuid import uuid4

from msgspec import Meta

from ...answers.answer import Answer
from ...answers.events import AnswerEvent, Finished, TextDelta, TokenEvent
from ...answers.request import GenerationRequest
from ...model.model import Model
from ..call import Call
from ..endpoint import error_part
from ..fill import fill_ids
from ..http.bodies import refuse
from ..http.problems import Problem, about_request
from ..http.sending import DONE, Stream, sse
from ..merging import merged
from ..sampling import Sampling, given_count, sampling_params
from ..usage import total_usage
from .chat import FINGERPRINT, REASONS, StreamOptions, usage
from .logprobs import TokenNames
from .parameters import REFUSED, form_of

DEFAULT_TOKENS = 16  # OpenAI's


class CompletionRequest(Sampling, kw_only=True):
    """A completion of raw text or token ids; `suffix` is what the text shall lead to (fill in the middle)."""

    prompt: str | list[str | int | list[int]] = ""
    model: str | None = None
    suffix: str | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=-1)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | bool | None = None
    response_format: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Choice:
    """One answer to one prompt; `echo` is the prompt's text where the answer repeats it."""

    answer: Answer
    ids: Sequence[int]
    echo: str


async def completions(call: Call, request: CompletionRequest) -> dict[str, Any] | Stream:
    """What follows a text, or each of several, once or `n` times."""
    refuse(call.fields, REFUSED)
    if request.suffix and request.echo:
        raise Problem(400, "echo and suffix do not go together", "echo", "invalid_value")
    model = await call.model(request.model)
    choices = await _choices(call, model, request)
    reply = _Reply(call, model, request, choices)
    if request.stream:
        return Stream(reply.chunks(), error_part(call.path, sse))
    return reply.whole([await call.complete(choice.answer) for choice in choices])


async def _choices(call: Call, model: Model, request: CompletionRequest) -> list[_Choice]:
    n, most = request.n or 1, call.serving.options.max_answers
    prompts = _prompts(request.prompt)
    if n * len(prompts) > most:
        raise Problem(400, f"a request has at most {most} answers", "n", "invalid_value")
    tokens = DEFAULT_TOKENS if request.max_tokens is None else given_count(request.max_tokens)
    form = form_of(request.response_format, call.fields)
    found = []
    for prompt in prompts:
        with about_request("prompt"):
            ids = _ids(model, prompt, request.suffix)
        echo = ""
        if request.echo:
            echo = prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)
        for nth in range(n):
            logprobs = _n_logprobs(request)
            scored = logprobs if request.echo else None
            params = sampling_params(request, tokens, logprobs, scored, nth)
            with about_request():
                asked = GenerationRequest(ids=ids, params=params, response_format=form)
            answer = await call.answer(partial(model.answer, asked))
            found.append(_Choice(answer, ids, echo))
    return found


def _n_logprobs(request: CompletionRequest) -> int | None:
    if request.logprobs is None or request.logprobs is False:
        return None
    return int(request.logprobs)


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts: a text, ids, or a list of these."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [each for each in prompt if isinstance(each, int)]
    if len(ids) == len(prompt) > 0:
        return [ids]
    if ids or not prompt:
        raise Problem(
            400, "prompt must be a text, a list of token ids, or a list of these", "prompt", "invalid_value"
        )
    return [each for each in prompt if not isinstance(each, int)]


def _ids(model: Model, prompt: str | list[int], suffix: str | None) -> list[int]:
    """The ids of a prompt. Control tokens that are written in a text count, since it is the whole prompt."""
    if suffix:
        beginning = prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)
        return fill_ids(model, beginning, suffix)
    ids = model.encode(prompt, special=True) if isinstance(prompt, str) else prompt
    if not ids and model.tokenizer.bos_id is not None:  # what OpenAI calls a new document
        ids = [model.tokenizer.bos_id]
    if not ids:
        raise ValueError("prompt must not be empty")
    return ids


class _Reply:
    """Writes answers in the shape of completions."""

    def __init__(
        self, call: Call, model: Model, request: CompletionRequest, choices: Sequence[_Choice]
    ) -> None:
        self._call = call
        self._choices = choices
        self._n = request.n or 1
        self._usage = request.stream_options is not None and bool(request.stream_options.include_usage)
        self._names = TokenNames(model) if _n_logprobs(request) is not None else None
        self._offsets = [0] * len(choices)  # characters that have been written
        self._head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time()),
            "model": call.model_name,
            "system_fingerprint": FINGERPRINT,
        }

    def whole(self, tokens: Sequence[Sequence[TokenEvent]]) -> dict[str, Any]:
        found = []
        for index, (choice, events) in enumerate(zip(self._choices, tokens, strict=True)):
            parts = [self._echo(index)] if choice.echo else []
            parts.append(self._choice(index, choice.answer.text, events))
            reason = REASONS.get(choice.answer.finish_reason or "", "stop")
            logprobs = [part["logprobs"] for part in parts if part["logprobs"]]
            joined = {
                key: [x for each in logprobs for x in each[key]] for key in (logprobs[0] if logprobs else ())
            }
            text = "".join(part["text"] for part in parts)
            found.append({"index": index, "text": text, "logprobs": joined or None, "finish_reason": reason})
        return {**self._head, "choices": found, "usage": self._total()}

    def _total(self) -> dict[str, Any]:
        """The usage of all prompts; a prompt counts once."""
        parts = [
            usage([choice.answer.stats for choice in self._choices[i : i + self._n]])
            for i in range(0, len(self._choices), self._n)
        ]
        for part in parts:
            del part["prompt_tokens_details"]["audio_tokens"]
        return total_usage(parts)

    def _echo(self, index: int) -> dict[str, Any]:
        choice = self._choices[index]
        logprobs = None
        if self._names is not None:
            scores = choice.answer.generation.prompt_logprobs
            logprobs = self._names.completion(zip(choice.ids, scores, strict=False), 0)
        self._offsets[index] = len(choice.echo)
        return {"index": index, "text": choice.echo, "logprobs": logprobs, "finish_reason": None}

    def _choice(self, index: int, text: str, events: Sequence[TokenEvent]) -> dict[str, Any]:
        logprobs = None
        if self._names is not None:
            tokens = [(event.id, event.logprobs) for event in events if event.id is not None]
            logprobs = self._names.completion(tokens, self._offsets[index])
        self._offsets[index] += len(text)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}

    async def chunks(self) -> AsyncIterator[bytes]:
        echoes = {index for index, choice in enumerate(self._choices) if choice.echo}
        async for index, batch in merged(self._call, [choice.answer for choice in self._choices]):
            if index in echoes:  # the prompt's log probabilities are known now
                echoes.remove(index)
                yield self._chunk(self._echo(index))
            yield self._part(index, batch)
        if self._usage:
            yield sse({**self._head, "choices": [], "usage": self._total()})
        yield DONE

    def _part(self, index: int, batch: Sequence[AnswerEvent]) -> bytes:
        deltas = [event for event in batch if isinstance(event, TextDelta)]
        text = "".join(delta.text for delta in deltas)
        events = [event for delta in deltas for event in delta.token_events]
        choice = self._choice(index, text, events)
        for event in batch:
            if isinstance(event, Finished):
                choice["finish_reason"] = REASONS.get(event.reason, "stop")
        return self._chunk(choice)

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        more = {"usage": None} if self._usage else {}
        return sse({**self._head, "choices": [choice], **more})
