"""POST /api/embed, and /api/embeddings, which it replaced."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..call import Call
from ..vectors import embedded


class OllamaEmbedRequest(msgspec.Struct, kw_only=True):
    """Texts whose vectors are asked for; those that are too long are cut unless `truncate` is false."""

    input: str | list[str]
    model: str | None = None
    truncate: bool = True
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None


class OllamaEmbeddingsRequest(msgspec.Struct, kw_only=True):
    """One text whose vector is asked for."""

    prompt: str
    model: str | None = None


async def embed(call: Call, request: OllamaEmbedRequest) -> dict[str, Any]:
    """The vectors of texts."""
    started = perf_counter_ns()
    texts = [request.input] if isinstance(request.input, str) else request.input
    vectors = await embedded(call, request.model, texts, request.dimensions, request.truncate)
    return {
        "model": call.model_name,
        "embeddings": vectors.tolist(),
        "total_duration": perf_counter_ns() - started,
        "load_duration": 0,
        "prompt_eval_count": call.n_prompt,
    }


async def embeddings(call: Call, request: OllamaEmbeddingsRequest) -> dict[str, Any]:
    """The vector of one text."""
    vectors = await embedded(call, request.model, [request.prompt], truncate=True)
    return {"embedding": vectors[0].tolist()}
