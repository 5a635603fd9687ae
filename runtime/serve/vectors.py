"""Vectors of texts and scores of documents, for the APIs that ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from ..model.model import Model
from .call import Call
from .http.problems import Problem, about_request

MOST_TEXTS = 2048


async def embedded(
    call: Call, name: str | None, texts: Sequence[str], dimensions: int | None = None, truncate: bool = False
) -> np.ndarray:
    """float32 [texts, dimensions]: the vectors of texts. Problem 400 for what the model cannot read."""
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise Problem(400, f"the input must be 1 to {MOST_TEXTS} texts, not {len(texts)}", "input")
    if not all(texts):
        raise Problem(400, "the input must not have empty texts", "input", "invalid_value")
    model = await call.model(name, vectors=True)
    return await asyncio.to_thread(_embed, call, model, texts, dimensions, truncate)


def _embed(
    call: Call, model: Model, texts: Sequence[str], dimensions: int | None, truncate: bool
) -> np.ndarray:
    with about_request("input"):
        vectors = model.embed(texts, dimensions=dimensions, truncate=truncate)
        call.n_prompt += sum(min(len(model.encode(text)), model.context) for text in texts)
    return vectors


async def reranked(
    call: Call, name: str | None, query: str, documents: Sequence[str], instruction: str | None
) -> np.ndarray:
    """float32 [documents]: how well each document answers a query. Problem 400 for what the model cannot
    read."""
    if not 1 <= len(documents) <= MOST_TEXTS:
        raise Problem(400, f"there must be 1 to {MOST_TEXTS} documents, not {len(documents)}", "documents")
    model = await call.model(name)
    return await asyncio.to_thread(_rerank, call, model, query, documents, instruction)


def _rerank(
    call: Call, model: Model, query: str, documents: Sequence[str], instruction: str | None
) -> np.ndarray:
    with about_request("documents"):
        scores = model.rerank(query, documents, instruction)
        n_query = len(model.tokenizer.encode(query))
        call.n_prompt += sum(n_query + len(model.tokenizer.encode(text)) for text in documents)
    return scores
