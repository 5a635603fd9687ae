"""Heads that make scores of a text: those of classifiers and cross-encoders, from a model's tensors.

Nogueira and Cho 2019, "Passage Re-ranking with BERT".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import DamagedFile, UnsupportedModel
from ..config.metadata import Metadata
from .settings import EmbeddingSettings
from .stages import Dense, LayerNorm, Stage

# Parts of a head: `score` or `classifier` make labels; the others are in front of them.
_HEAD = re.compile(
    r"(?:(?:bert|roberta|model)\.)?(score|classifier|classifier\.dense|classifier\.out_proj|pre_classifier"
    r"|pooler\.dense|head\.dense|head\.norm)\.(weight|bias)"
)
_GGUF_HEAD = re.compile(r"(cls|cls\.norm|cls\.output)\.(weight|bias)")
_ACTIVATIONS = {"gelu": "gelu", "tanh": "tanh", "relu": "relu", "silu": "silu"}


@dataclass(frozen=True)
class ScoringHead:
    """A head over the pooled hidden states of a text.

    `settings` have the pooling, and the stages whose outputs are the labels' logits, `n_labels` of them.
    With `bounded` a logit becomes a score from 0 to 1. `tensors` are the names of the head's tensors.
    """

    settings: EmbeddingSettings
    n_labels: int
    bounded: bool
    tensors: frozenset[str]


def head_of_folder(config: Mapping[str, Any], tensors: Mapping[str, QTensor]) -> ScoringHead | None:
    """The head of a Hugging Face folder; None if it has none. Raises DamagedFile or UnsupportedModel."""
    found = {f"{m[1]}.{m[2]}": name for name in tensors if (m := _HEAD.fullmatch(name))}
    parts = {name.rpartition(".")[0] for name in found}
    if not {"score", "classifier", "classifier.out_proj"} & parts:
        return None
    head = _Parts(tensors, found)
    keys = Metadata(config, "config.json")
    stages: list[Stage] = []
    pooling = "cls"
    if "score" in parts:
        pooling = "lasttoken"
        stages.append(head.dense("score"))
    elif "classifier.out_proj" in parts:
        stages += [head.dense("classifier.dense", "tanh"), head.dense("classifier.out_proj")]
    elif "head.dense" in parts:
        pooling = keys.text("classifier_pooling", "cls")
        kind = _ACTIVATIONS.get(keys.text("classifier_activation", "gelu"))
        if pooling not in ("cls", "mean") or kind is None:
            raise UnsupportedModel(
                "config.json: classifier_pooling or classifier_activation is not supported"
            )
        eps = keys.number("norm_eps", 1e-5)
        stages += [head.dense("head.dense", kind), head.norm("head.norm", eps), head.dense("classifier")]
    elif "pre_classifier" in parts:
        stages += [head.dense("pre_classifier", "relu"), head.dense("classifier")]
    else:
        stages += [head.dense("pooler.dense", "tanh")] if "pooler.dense" in parts else []
        stages.append(head.dense("classifier"))
    return head.made(pooling, stages, _is_bounded(config))


def head_of_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, QTensor]) -> ScoringHead | None:
    """The head of a GGUF file; None if it has none. Raises DamagedFile."""
    found = {f"{m[1]}.{m[2]}": name for name in tensors if (m := _GGUF_HEAD.fullmatch(name))}
    if not found:
        return None
    head, stages = _Parts(tensors, found), list[Stage]()
    architecture = metadata.get("general.architecture")
    if "cls.weight" in found:
        last = "cls.output.weight" not in found
        gelu = architecture == "modern-bert"
        stages.append(head.dense("cls", "identity" if last else "gelu" if gelu else "tanh"))
    if "cls.norm.weight" in found:
        stages.append(head.norm("cls.norm", 1e-5))
    if "cls.output.weight" in found:
        stages.append(head.dense("cls.output"))
    encoders = ("bert", "modern-bert", "nomic-bert")
    return head.made("cls" if architecture in encoders else "lasttoken", stages, bounded=True)


def _is_bounded(config: Mapping[str, Any]) -> bool:
    """Whether scores are from 0 to 1: they are, unless the file names the identity as its activation."""
    section = config.get("sentence_transformers")
    named = section.get("activation_fn") if isinstance(section, Mapping) else None
    named = named or config.get("sbert_ce_default_activation_function")
    return not (isinstance(named, str) and named.endswith(".Identity"))


class _Parts:
    """The tensors of a head; `names` are their names in the file by part and kind: "classifier.weight"."""

    def __init__(self, tensors: Mapping[str, QTensor], names: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._names = names

    def dense(self, part: str, activation: str = "identity") -> Dense:
        weight = self._values(f"{part}.weight")
        if weight is None or weight.ndim != 2:
            raise DamagedFile(f"tensor {part}.weight is missing, or no matrix")
        return Dense(weight, self._values(f"{part}.bias"), activation)

    def norm(self, part: str, eps: float) -> LayerNorm:
        weight = self._values(f"{part}.weight")
        if weight is None:
            raise DamagedFile(f"tensor {part}.weight is missing")
        return LayerNorm(weight, self._values(f"{part}.bias"), eps)

    def made(self, pooling: str, stages: list[Stage], bounded: bool) -> ScoringHead:
        last = stages[-1]
        assert isinstance(last, Dense)
        widths = [stage.weight.shape for stage in stages if isinstance(stage, Dense)]
        for (n_out, _), (_, n_in) in pairwise(widths):
            if n_out != n_in:
                raise DamagedFile(
                    f"the head's matrices of {n_out} outputs and {n_in} inputs do not fit together"
                )
        settings = EmbeddingSettings(pooling=(pooling,), stages=tuple(stages))
        return ScoringHead(settings, len(last.weight), bounded, frozenset(self._names.values()))

    def _values(self, name: str) -> np.ndarray | None:
        if name not in self._names:
            return None
        values: np.ndarray = self._tensors[self._names[name]].dequantize()
        return values
