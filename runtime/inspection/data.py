"""An inspection as plain data: dicts, lists, numbers and texts, for JSON and for pages that draw it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .attention import AttentionWeights
from .distributions import Distributions
from .inspection import Inspection


class Spelling(Protocol):
    """How tokens are spelled; a Tokenizer."""

    def token_text(self, id: int) -> str: ...

    def token_bytes(self, id: int) -> bytes: ...

    def is_special(self, id: int) -> bool: ...


def inspection_data(inspection: Inspection, spelling: Spelling | None) -> dict[str, Any]:
    """An inspection as plain data; docs/inspection.md has its form. Without `spelling` texts are empty."""
    found, shown = inspection, Spelled(spelling)
    return {
        "tokens": shown.tokens(found),
        "next": [
            {"entropy": _number(found.top.entropy[i]), "top": shown.top(found.top[i])}
            for i in range(len(found.ids))
        ],
        "norms": _rounded(found.norms),
        "updates": _rounded(found.updates),
        "lens": None
        if found.lens is None
        else {
            "layers": list(found.lens.layers),
            "entropy": _rounded(found.lens.top.entropy),
            "next_probability": _rounded(found.lens.top.next_probability),
            "cells": [
                [shown.top(found.lens.top[i][p])[:3] for p in range(len(found.ids))]
                for i in range(len(found.lens.layers))
            ],
        },
        "attention": [attention_data(each) for each in found.attention.values()],
        "experts": [
            {
                "layer": each.layer,
                "n_experts": each.n_experts,
                "experts": each.experts.tolist(),
                "weights": _rounded(each.weights),
            }
            for each in found.experts.values()
        ],
        "states": [
            {
                "layer": each.layer,
                "positions": each.positions.tolist(),
                "norms": _rounded(each.norms),
            }
            for each in found.states.values()
        ],
        "cache": {
            "kv_type": found.cache.kv_type,
            "page_size": found.cache.page_size,
            "pages": found.cache.pages,
            "bytes": found.cache.n_bytes,
            "layers": [
                {"layer": layer, "page_bytes": size, "bytes": size * found.cache.pages}
                for layer, size in found.cache.page_bytes.items()
            ],
        },
    }


class Spelled:
    """Tokens with their texts, as plain data."""

    def __init__(self, spelling: Spelling | None) -> None:
        self._spelling = spelling

    def token(self, id: int) -> dict[str, Any]:
        """{"id", "text"}, and for a token that is a part of a character its "bytes" in hexadecimal; for a
        control token "special": true."""
        if self._spelling is None:
            return {"id": id, "text": ""}
        text = self._spelling.token_text(id)
        found: dict[str, Any] = {"id": id, "text": text}
        if "\ufffd" in text:
            found["bytes"] = self._spelling.token_bytes(id).hex(" ")
        if self._spelling.is_special(id):
            found["special"] = True
        return found

    def tokens(self, inspection: Inspection) -> list[dict[str, Any]]:
        """The inspected tokens, each with its probability and rank behind those in front of it; null for the
        first one."""
        top, found = inspection.top, []
        for i, id_ in enumerate(inspection.ids.tolist()):
            probability = _number(top.next_probability[i - 1]) if i else None
            rank = int(top.next_rank[i - 1]) if i and top.next_rank[i - 1] >= 0 else None
            found.append({"position": i, **self.token(id_), "probability": probability, "rank": rank})
        return found

    def top(self, top: Distributions) -> list[dict[str, Any]]:
        """The likeliest tokens of one distribution, with their probabilities, the likeliest first."""
        pairs = zip(top.ids.tolist(), top.probabilities.tolist(), strict=True)
        return [{**self.token(id_), "probability": _digits(p)} for id_, p in pairs if p > 0]


def attention_data(each: AttentionWeights) -> dict[str, Any]:
    """The attention weights of a layer: [heads][rows][positions]."""
    return {
        "layer": each.layer,
        "heads": list(each.heads),
        "rows": list(each.rows),
        "n_heads": each.n_heads,
        "kv_heads": each.kv_heads,
        "window": each.window,
        "weights": np.round(each.weights.astype(np.float64), 4).tolist(),
    }


def _number(value: float) -> float | None:
    """A number with few digits, None for NaN and infinity."""
    return _digits(float(value)) if np.isfinite(value) else None


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _rounded(array: np.ndarray) -> list[Any]:
    """Nested lists of numbers with few digits, None for NaN and infinity."""
    if array.ndim > 1:
        return [_rounded(part) for part in array]
    return [_number(value) for value in array.tolist()]
