"""What is no API of somebody else's: health, metrics, tokens, and the description of all."""

from __future__ import annotations

from typing import Any

import msgspec

from .call import Call
from .endpoint import Plain
from .http.problems import about_request, busy

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Nothing(msgspec.Struct):
    """A request without fields."""


class TokenizeRequest(msgspec.Struct):
    """A text to cut into tokens; `add_special` puts in front what the model expects there, `parse_special`
    takes control tokens in the text for what they are."""

    content: str | None = None
    text: str | None = None
    model: str | None = None
    add_special: bool = False
    parse_special: bool = False
    with_pieces: bool = False


class DetokenizeRequest(msgspec.Struct):
    """Token ids to make text of."""

    tokens: list[int]
    model: str | None = None


async def health(call: Call, request: Nothing) -> dict[str, Any]:
    """Whether requests can be answered now; 503 while the first model is being loaded."""
    entry = call.serving.pool.find(None)
    if entry.model is None and entry.loading is not None:
        if entry.loading.done() and (error := entry.loading.exception()) is not None:
            raise busy(f"{entry.name} cannot be loaded: {error}")
        raise busy(f"{entry.name} is being loaded: {entry.progress}")
    return {"status": "ok"}


async def metrics(call: Call, request: Nothing) -> Plain:
    """Counters and histograms for Prometheus."""
    return Plain(call.serving.metrics.text(), METRICS_TYPE)


async def tokenize(call: Call, request: TokenizeRequest) -> dict[str, Any]:
    """The token ids of a text, with their texts if `with_pieces` is set."""
    model = await call.model(request.model)
    text = request.content if request.content is not None else request.text or ""
    with about_request("content"):
        tokenizer = model.tokenizer
        ids = tokenizer.encode(text, special=request.parse_special)
        ids = tokenizer.with_prefix(ids) if request.add_special else ids
    if not request.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": id_, "piece": tokenizer.token_text(id_)} for id_ in ids]}


async def detokenize(call: Call, request: DetokenizeRequest) -> dict[str, Any]:
    """The text of token ids."""
    model = await call.model(request.model)
    size = model.tokenizer.vocab_size
    wrong = [id_ for id_ in request.tokens if not 0 <= id_ < size]
    with about_request("tokens"):
        if wrong:
            raise ValueError(f"token {wrong[0]} is not in the vocabulary of {size}")
        return {"content": model.tokenizer.decode(request.tokens)}
