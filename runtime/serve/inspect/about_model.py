"""What belongs to a model more than to a prompt: sizes, rotary angles, embeddings; and searches for beams."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...engine.sampling.beam_search import BeamParams
from ...engine.sampling.params import SamplingParams
from ...inspection.beams import beam_tree, beams_data
from ...inspection.data import Spelled
from ...inspection.embeddings import embedding_table, embeddings_data
from ...inspection.rope import rope_data
from ...sizing.sizes import model_sizes
from ..call import Call
from ..http.problems import about_request
from . import asking


class ModelRequest(msgspec.Struct):
    """The name of a model."""

    model: str | None = None


class NearRequest(asking.Inspected, kw_only=True):
    """The tokens to put on a map, and how many neighbours of each."""

    n: Annotated[int, Meta(ge=0, le=asking.MOST_NEAR)] = 5


class BeamRequest(asking.Inspected, kw_only=True):
    """A prompt, the number of beams, and the tokens that an answer has at most."""

    k: Annotated[int, Meta(ge=1, le=asking.MOST_BEAMS)] = 3
    max_tokens: Annotated[int, Meta(ge=1, le=asking.MOST_BEAM_TOKENS)] = 8
    length_penalty: Annotated[float, Meta(ge=-10, le=10)] = 1.0


async def about(call: Call, request: ModelRequest) -> dict[str, Any]:
    """The sizes of a model's weights and KV cache, its attention, and the angles of its rotary embeddings."""
    asking.check_allowed(call)
    model = await call.model(request.model)
    sizes = await asyncio.to_thread(model_sizes, model.path, call.model_name)
    config = model.config
    return {
        "model": call.model_name,
        "layers": config.n_layers,
        "heads": config.n_heads,
        "hidden": config.hidden,
        "vocabulary": config.vocab_size,
        "context": model.context,
        "sizes": asdict(sizes),
        "rope": rope_data(config),
    }


async def near(call: Call, request: NearRequest) -> dict[str, Any]:
    """The neighbours of tokens in the embedding table, and a map of all of them in two dimensions."""
    model = await call.model(request.model)
    ids = await asking.ids_of(call, model, request)
    tokenizer = model.tokenizer

    def look() -> dict[str, Any]:
        table = embedding_table(model.engine.machine.program)
        return embeddings_data(table, ids, request.n, Spelled(tokenizer), tokenizer.vocab_size)

    return await asking.in_turn(call, look)


async def beams(call: Call, request: BeamRequest) -> dict[str, Any]:
    """A beam search as a tree: what each step continued, and where answers ended."""
    model = await asking.writing_model(call, request.model)
    ids = await asking.ids_of(call, model, request)
    trail: list[Any] = []
    with about_request("k"):
        options = BeamParams(request.k, request.length_penalty)
        params = SamplingParams(max_tokens=request.max_tokens)
        generation = model.engine.submit_beams(ids, options, params, trail=trail)
    call.stack.callback(generation.close)
    answers = await generation
    return beams_data(beam_tree(len(ids), trail, answers), options, Spelled(model.tokenizer))
