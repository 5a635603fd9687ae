"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..call import Call
from ..http.problems import Problem, about_request
from ..vectors import embedded


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """Texts, or token ids of texts, whose vectors are asked for."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None


async def embeddings(call: Call, request: EmbeddingsRequest) -> dict[str, Any]:
    """The vectors of texts, as numbers or, in base64, as the bytes of float32."""
    form = request.encoding_format or "float"
    if form not in ("float", "base64"):
        raise Problem(
            400,
            f"encoding_format must be float or base64, not {form:.40}",
            "encoding_format",
            "invalid_value",
        )
    texts = await _texts(call, request)
    vectors = await embedded(call, request.model, texts, request.dimensions)
    data = []
    for i, vector in enumerate(vectors):
        value = vector.tolist() if form == "float" else base64.b64encode(vector.astype("<f4")).decode()
        data.append({"object": "embedding", "index": i, "embedding": value})
    usage = {"prompt_tokens": call.n_prompt, "total_tokens": call.n_prompt}
    return {"object": "list", "data": data, "model": call.model_name, "usage": usage}


async def _texts(call: Call, request: EmbeddingsRequest) -> list[str]:
    """The texts; ids become the text that they stand for."""
    given = request.input
    if isinstance(given, str):
        return [given]
    if all(isinstance(each, str) for each in given):
        return [str(each) for each in given]
    model = await call.model(request.model, vectors=True)
    ids = [given] if all(isinstance(each, int) for each in given) else given
    with about_request("input"):
        if any(not isinstance(each, list) for each in ids):
            raise ValueError("input must be texts or lists of token ids, not both")
        size = model.tokenizer.vocab_size
        if any(not isinstance(id_, int) or not 0 <= id_ < size for each in ids for id_ in each):  # type: ignore[union-attr]
            raise ValueError(f"input has token ids that are not in the vocabulary of {size}")
        return [model.tokenizer.decode(each) for each in ids]  # type: ignore[arg-type]
