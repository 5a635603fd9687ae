"""What requests for inspections have in common: which tokens they are about, their limits, and their turn.

An inspection has the machine to itself and empties the KV cache, so that one runs at a time, over as many
tokens as `ServeOptions.max_inspect` allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ...model.model import Model
from ..call import Call
from ..http.problems import Problem, about_request

MOST_NEW = 128  # tokens of an answer that is inspected
MOST_TOP = 50  # tokens of a distribution at each place
MOST_LOGITS = 1000  # tokens of one distribution
MOST_WEIGHTS = 1 << 22  # attention weights of an answer
LONGEST_WORD = 128  # characters of a word whose merges are told
MOST_NEAR = 20  # neighbours of a token
MOST_BEAMS = 8
MOST_BEAM_TOKENS = 32

R = TypeVar("R")


class Inspected(msgspec.Struct, kw_only=True):
    """A text as it is, messages for the chat template, or token ids: one of them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    ids: list[Annotated[int, Meta(ge=0)]] | None = None


def check_allowed(call: Call) -> None:
    """Problem 403 where the server gives no inspections."""
    if not call.serving.options.max_inspect:
        raise Problem(403, "this server gives no inspections (--max-inspect 0)", code="not_allowed")


async def writing_model(call: Call, name: str | None) -> Model:
    """The model of that name, until the request's end. Problem 400 for one that makes vectors or scores."""
    model = await call.model(name)
    if model.vectors is not None:
        text = f"{call.model_name} makes vectors or scores of a text, and writes none"
        raise Problem(400, text, "model", "unsupported_model")
    return model


async def ids_of(call: Call, model: Model, request: Inspected) -> list[int]:
    """The ids that a request is about, at least one. Problem 400 for none, for too many, and for ids that the
    model does not have."""
    check_allowed(call)
    given = [each for each in (request.prompt, request.messages, request.ids) if each is not None]
    if len(given) != 1:
        raise Problem(400, "an inspection is of a prompt, of messages or of ids", "prompt", "invalid_value")
    with about_request("prompt"):
        ids = list(await asyncio.to_thread(model.prompt_ids, given[0]))
        if not ids:
            raise ValueError("there is nothing to inspect: no token")
        if wrong := [id_ for id_ in ids if id_ >= model.config.vocab_size]:
            raise ValueError(f"token id {wrong[0]} is not in the vocabulary of {model.config.vocab_size}")
    check_length(call, ids)
    call.n_prompt += len(ids)
    return ids


def check_length(call: Call, ids: Sequence[int]) -> None:
    """Problem 400 for more tokens than this server inspects."""
    most = call.serving.options.max_inspect
    if len(ids) > most:
        text = f"these are {len(ids)} tokens, and this server inspects up to {most} (--max-inspect)"
        raise Problem(400, text, "prompt", "context_length_exceeded")


async def in_turn(call: Call, work: Callable[[], R]) -> R:
    """What `work` gives, in a thread, once no other inspection runs. A client that leaves ends the waiting;
    work that has begun is waited for all the same, since it has the machine."""
    async with call.serving.inspecting:
        task = asyncio.ensure_future(asyncio.to_thread(_run, work))
        try:
            return await asyncio.shield(task)
        finally:
            if not task.done():
                await asyncio.wait({task})


def _run(work: Callable[[], R]) -> R:
    with about_request("prompt"):
        return work()
