"""POST /v1/rerank, as Jina, Cohere and other servers have it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..call import Call
from ..http.problems import Problem
from ..vectors import reranked


class RerankRequest(msgspec.Struct, kw_only=True):
    """A query, and documents that may answer it: texts, or objects with a `text`."""

    query: str
    documents: list[str | dict[str, Any]]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None
    instruction: str | None = None


async def rerank(call: Call, request: RerankRequest) -> dict[str, Any]:
    """The documents by how well they answer the query, the best first."""
    texts = [_text(document, i) for i, document in enumerate(request.documents)]
    scores = await reranked(call, request.model, request.query, texts, request.instruction)
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[: request.top_n]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": float(scores[i])} for i in order]
    if request.return_documents:
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    usage = {"prompt_tokens": call.n_prompt, "total_tokens": call.n_prompt}
    return {"object": "list", "model": call.model_name, "results": results, "usage": usage}


def _text(document: str | dict[str, Any], i: int) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise Problem(400, f"documents[{i}] must be a text", f"documents[{i}]", "invalid_value")
    return text
