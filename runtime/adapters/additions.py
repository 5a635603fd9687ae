"""From changes of a model's matrices to what is added to its program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...quant.block import QTensor
from ...quant.formats import FORMATS
from ..config.mla import MLAConfig
from ..config.model_config import ModelConfig
from ..ops import LowRankExperts
from ..weights.binding import Weights
from ..weights.mla_heads import HeadTensors
from ..weights.tensors import transposed
from .beside import Additions, Beside
from .low_rank import LowRank
from .places import EMBEDDINGS

HEADS = ".attn_kv_b.weight"  # the matrix that multi-head latent attention has cut into heads


def additions_of(
    changes: Mapping[str, LowRank], replaced: Mapping[str, QTensor], config: ModelConfig, weights: Weights
) -> Additions:
    """The summed changes of matrices and of experts' stacks, by name, as what is added to the program.

    `replaced` are embeddings and the output matrix that take the place of the model's.
    """
    additions = Additions()
    for name, tensor in replaced.items():
        matrix = weights.matrix(EMBEDDINGS if config.tied else name)
        (additions.tables if name == EMBEDDINGS else additions.outputs)[id(matrix)] = tensor
    for name, change in changes.items():
        stem = name.removesuffix(".weight").split(".", 2)[-1]
        if name == EMBEDDINGS:
            table = weights.matrix(name)
            down, up = change.factors(name, table)
            additions.embeddings[id(table)] = Beside(f"low {stem}", transposed(down), up)
        elif name.endswith(HEADS) and config.mla:
            heads = weights.heads(layer_of(name))
            keys, values = changed_heads(heads, change, config.mla)
            additions.heads[id(heads.keys)], additions.heads[id(heads.values)] = keys, values
        elif stem.endswith("_exps"):
            matrices = weights.experts(layer_of(name)).matrices[stem]
            additions.experts[id(matrices)] = LowRankExperts(*change.of_experts(name, matrices))
        else:
            tied = name == "output.weight" and config.tied
            matrix = weights.matrix(EMBEDDINGS if tied else name)
            down, up = change.factors(name, matrix)
            additions.products[id(matrix)] = Beside(f"low {stem}", down, up, change.bias)
    return additions


def layer_of(name: str) -> int:
    return int(name.split(".")[1])


def changed_heads(
    heads: HeadTensors, change: LowRank, mla: MLAConfig
) -> tuple[tuple[QTensor, ...], tuple[QTensor, ...]]:
    """The matrices of keys and values of all heads with a change added: in F32 beside floats, else in F16.

    They are small, and the machines keep them in floats anyway.
    """
    by_head = np.split(change.delta, len(heads.keys))  # (nope_dim + value_dim, kv_rank) each
    return (
        tuple(_plus(key, delta[: mla.nope_dim].T) for key, delta in zip(heads.keys, by_head, strict=True)),
        tuple(
            _plus(value, delta[mla.nope_dim :]) for value, delta in zip(heads.values, by_head, strict=True)
        ),
    )


def _plus(matrix: QTensor, delta: np.ndarray) -> QTensor:
    kind = "F32" if matrix.format.is_float else "F16"
    values = np.ascontiguousarray(matrix.dequantize() + delta, np.float32 if kind == "F32" else np.float16)
    return replace(matrix, format=FORMATS[kind], data=values.view(np.uint8), factors=())
