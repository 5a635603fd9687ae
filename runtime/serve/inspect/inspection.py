"""POST /inspect and what belongs to one: attention weights, and the distribution behind some tokens."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from ...engine.sampling.params import SamplingParams
from ...engine.stats import GenerationStats
from ...inspection.attention import AttentionChoice
from ...inspection.data import Spelled, attention_data
from ...model.model import Model
from ...sizing.traffic import timing_data
from ..call import Call
from ..http.problems import Problem, about_request
from . import asking

Share = Annotated[float, Meta(ge=0, le=1)]


class InspectRequest(asking.Inspected, kw_only=True):
    """A prompt, and how many tokens the model is to write behind it first, which are inspected as well;
    `top`: tokens of each distribution."""

    max_tokens: Annotated[int, Meta(ge=0, le=asking.MOST_NEW)] = 0
    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0
    top_k: Annotated[int, Meta(ge=0)] = 40
    top_p: Share = 0.95
    min_p: Share = 0.05
    seed: int | None = None
    top: Annotated[int, Meta(ge=1, le=asking.MOST_TOP)] = 10
    lens: bool = True


class AttentionRequest(asking.Inspected, kw_only=True):
    """The tokens, and the layers, heads and rows (positions that look) whose weights to tell; null: all."""

    layers: list[int] | None = None
    heads: list[int] | None = None
    rows: list[int] | None = None


class NextRequest(asking.Inspected, kw_only=True):
    """The tokens behind which to look, and how many of the likeliest to tell."""

    n: Annotated[int, Meta(ge=1, le=asking.MOST_LOGITS)] = 200


async def inspect(call: Call, request: InspectRequest) -> dict[str, Any]:
    """What a model computes over a prompt and its own answer: tokens, distributions, lens, norms, cache; and
    how byte-pair encoding made the tokens of a prompt that is a text."""
    model = await asking.writing_model(call, request.model)
    ids = await asking.ids_of(call, model, request)
    new, written = await _written(call, model, ids, request)
    inspected = [*ids, *new]
    seen = await asking.in_turn(call, partial(model.inspect, inspected, top=request.top, lens=request.lens))
    return {
        "model": call.model_name,
        "n_prompt": len(ids),
        "merges": model.tokenizer.merge_steps(request.prompt, asking.LONGEST_WORD) if request.prompt else [],
        "finish_reason": written.finish_reason if written else None,
        "timing": timing_data(model.engine, written) if written else None,
        **seen.data(model.tokenizer),
    }


async def _written(
    call: Call, model: Model, ids: list[int], request: InspectRequest
) -> tuple[list[int], GenerationStats | None]:
    """The tokens of the answer, and their statistics; None if there are to be none."""
    room = min(call.serving.options.max_inspect, model.context) - len(ids)
    n = min(request.max_tokens, room)
    if n < 1:
        return [], None
    with about_request():
        params = SamplingParams(
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            min_p=request.min_p,
            seed=request.seed,
            max_tokens=n,
        )
        generation = model.engine.submit(ids, params)
    call.stack.callback(generation.close)
    new = [token async for token in generation]
    call.n_new += len(new)
    return new, generation.stats


async def attention(call: Call, request: AttentionRequest) -> dict[str, Any]:
    """Attention weights of some layers, heads and rows."""
    model = await asking.writing_model(call, request.model)
    ids = await asking.ids_of(call, model, request)
    config = model.config
    chosen = [
        n if each is None else len(each)
        for each, n in (
            (request.layers, config.n_layers),
            (request.heads, config.n_heads),
            (request.rows, len(ids)),
        )
    ]
    n_weights = chosen[0] * chosen[1] * chosen[2] * len(ids)
    if n_weights > asking.MOST_WEIGHTS:
        text = f"these are {n_weights} attention weights, and this server gives up to {asking.MOST_WEIGHTS}"
        raise Problem(400, f"{text}: ask for fewer layers, heads or rows", "layers", "invalid_value")
    choice = AttentionChoice(request.layers, request.heads, request.rows)
    seen = await asking.in_turn(call, partial(model.inspect, ids, top=1, attention=choice))
    return {"attention": [attention_data(each) for each in seen.attention.values()]}


async def following(call: Call, request: NextRequest) -> dict[str, Any]:
    """The likeliest tokens behind some tokens, with their log probabilities before any sampling."""
    model = await asking.writing_model(call, request.model)
    ids = await asking.ids_of(call, model, request)
    with about_request("ids"):
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=request.n, ignore_eos=True)
        generation = model.engine.submit(ids, params)
    call.stack.callback(generation.close)
    async for _ in generation:
        pass
    shown = Spelled(model.tokenizer)
    return {
        "top": [{**shown.token(id_), "logprob": logprob} for id_, logprob in generation.logprobs[0].top],
    }
