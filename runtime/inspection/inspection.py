"""Inspection: what a model computed over some ids, as NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .attention import AttentionWeights
from .distributions import Distributions

if TYPE_CHECKING:
    from .data import Spelling


@dataclass(frozen=True)
class Lens:
    """The logit lens: what the output norm and head make of the residual stream between layers.

    `layers[i]` is the layer that the stream enters, the number of layers for the one that leaves the last,
    whose distributions are the model's own. The distributions have the shape [len(layers), positions].
    (nostalgebraist 2020, "interpreting GPT: the logit lens".)
    """

    layers: tuple[int, ...]
    top: Distributions


@dataclass(frozen=True)
class ExpertChoices:
    """The experts that a layer's router selected: `experts` int32 [positions, k], of `n_experts`, and their
    weights float32 [positions, k] in the sum."""

    layer: int
    n_experts: int
    experts: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class StateNorms:
    """The Euclidean norms of a layer's recurrent states, float32 [len(positions), states], each behind the
    position of that row: convolution first, then the scan or delta rule."""

    layer: int
    positions: np.ndarray
    norms: np.ndarray


@dataclass(frozen=True)
class CacheUse:
    """The KV cache of the inspected sequence: pages of `page_size` tokens, `pages` of them, and the bytes of
    a page in each layer that has keys and values of its own (by its number)."""

    kv_type: str
    page_size: int
    pages: int
    page_bytes: dict[int, int]

    @property
    def n_bytes(self) -> int:
        return self.pages * sum(self.page_bytes.values())


@dataclass(frozen=True)
class Inspection:
    """What a model computed over T ids; L is the number of layers, H the width of the residual stream.

    - `ids`: int32 [T].
    - `top`: the distribution behind each id, [T].
    - `norms`: float32 [L + 1, T], the root mean square of the residual stream that enters each layer, and of
      the one that leaves the last. With AltUp that of all streams together.
    - `updates`: float32 [L, T], the root mean square of what each layer adds to it.
    - `logits`: float32 [T, vocab], if they were asked for.
    - `residual`: float32 [L + 1, T, H], if it was asked for; with AltUp [L + 1, streams, T, H].
    - `lens`: if it was asked for.
    - `attention`: of the layers that were chosen and have attention, by their number.
    - `experts`: of all layers with a router.
    - `states`: of all layers with recurrent states.
    - `cache`: what the sequence took of the KV cache.
    """

    ids: np.ndarray
    top: Distributions
    norms: np.ndarray
    updates: np.ndarray
    logits: np.ndarray | None
    residual: np.ndarray | None
    lens: Lens | None
    attention: dict[int, AttentionWeights]
    experts: dict[int, ExpertChoices]
    states: dict[int, StateNorms]
    cache: CacheUse

    @property
    def n_layers(self) -> int:
        return len(self.updates)

    def data(self, tokenizer: Spelling | None = None) -> dict[str, Any]:
        """All of it but `logits` and `residual` as dicts, lists, numbers and texts, ready for JSON; its form
        is in docs/inspection.md. `tokenizer` spells the tokens; None: texts are empty."""
        from .data import inspection_data

        return inspection_data(self, tokenizer)
