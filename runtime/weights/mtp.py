"""The tensors of a model's layer for multi-token prediction (MTP), as those of a model of one layer.

DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2: behind the last layer a further one reads the
hidden state of a token and the embedding of the next, and predicts the one behind that. Files keep it under
the number behind the last layer's (DeepSeek, GLM-4; `nextn` in GGUF files) or apart (Qwen: `mtp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...quant.block import QTensor
from ...quant.checkpoint.lazy_rows import is_lazy
from ...quant.errors import UnsupportedModel
from ...quant.formats import FORMATS
from ..archs import ARCHS
from ..config.model_config import ModelConfig
from ..config.tensor_names import TensorNames

_QWEN = {
    "mtp.pre_fc_norm_embedding.weight": "enorm",
    "mtp.pre_fc_norm_hidden.weight": "hnorm",
    "mtp.fc.weight": "eh_proj",
    "mtp.norm.weight": "output_norm",
}
_OWN = {  # behind the layer's prefix
    "enorm.weight": "enorm",
    "hnorm.weight": "hnorm",
    "eh_proj.weight": "eh_proj",
    "shared_head.norm.weight": "output_norm",
    "shared_head.head.weight": "output",
    "embed_tokens.weight": "token_embd",
}
_IN_GGUF = {
    "shared_head.norm.weight": "shared_head_norm.weight",
    "shared_head.head.weight": "shared_head_head.weight",
}
_NEEDED = ("enorm", "hnorm", "eh_proj")


@dataclass(frozen=True)
class MtpModel:
    """The first layer for multi-token prediction as a model of one layer, and what joins its two inputs.

    `embedding_norm` and `hidden_norm`, float32 [hidden], are the norms of the next token's embedding and of
    the hidden state; `projection` are the matrices, (hidden, hidden), that they are multiplied with. The
    hidden state `reads_normed`: behind the output norm, or it is the residual stream.
    """

    config: ModelConfig
    tensors: Mapping[str, QTensor]
    embedding_norm: np.ndarray
    hidden_norm: np.ndarray
    projection: tuple[QTensor, QTensor]
    reads_normed: bool


def mtp_model(config: ModelConfig, tensors: Mapping[str, QTensor]) -> MtpModel:
    """The MTP layer of a model with these tensors. Raises UnsupportedModel if there is none, or not all."""
    names = TensorNames(ARCHS[config.arch], tensors, config.from_gguf)
    own, prefix = _places(config, names, tensors)
    missing = [role for role in _NEEDED if role not in own]
    if missing:
        raise UnsupportedModel(f"this file has no layer for multi-token prediction ({missing[0]} is missing)")
    bound = {name: tensors[name] for name in _outside(config, names) if name in tensors}
    first = names.layer_prefix(0)
    for name, tensor in tensors.items():
        if name.startswith(prefix) and name not in own.values():
            bound[first + name.removeprefix(prefix)] = tensor
    for role in ("output_norm", "output", "token_embd"):
        if role in own:
            bound[names(f"{role}.weight")] = tensors[own[role]]
    layer = next(layer for layer in reversed(config.layers) if layer.has_attention)
    tied = config.tied and "output" not in own
    single = replace(config, layers=(replace(layer, kv_from=None),), mtp_layers=0, tied=tied)
    offset = np.float32(config.norm_offset)
    return MtpModel(
        config=single,
        tensors=bound,
        embedding_norm=tensors[own["enorm"]].dequantize() + offset,
        hidden_norm=tensors[own["hnorm"]].dequantize() + offset,
        projection=_halves(tensors[own["eh_proj"]]),
        reads_normed=ARCHS[config.arch].mtp_reads_normed,
    )


def _halves(matrix: QTensor) -> tuple[QTensor, QTensor]:
    """The left and the right half of the columns of a matrix, in its format if its blocks allow that."""
    rows, width = matrix.shape
    half, form, data, factors = width // 2, matrix.format, matrix.data, matrix.factors
    if is_lazy(matrix) or half % form.block_size:
        form, data, factors = FORMATS["F32"], matrix.dequantize().view(np.uint8), ()
    middle = data.shape[1] // 2
    left, right = (np.ascontiguousarray(part) for part in (data[:, :middle], data[:, middle:]))
    name, shape = matrix.name, (rows, half)
    return QTensor(name, form, shape, left, factors), QTensor(name, form, shape, right, factors)


def _places(
    config: ModelConfig, names: TensorNames, tensors: Mapping[str, QTensor]
) -> tuple[dict[str, str], str]:
    """Names in the file by role, of the tensors that are no layer's; and the prefix of the layer's own."""
    if "mtp.fc.weight" in tensors:
        return {role: name for name, role in _QWEN.items() if name in tensors}, "mtp.layers.0."
    prefix = names.layer_prefix(config.n_layers)
    found = {}
    for ending, role in _OWN.items():
        gguf = f"{prefix}nextn.{_IN_GGUF.get(ending, ending)}"
        if (name := gguf if config.from_gguf else prefix + ending) in tensors:
            found[role] = name
    return found, prefix


def _outside(config: ModelConfig, names: TensorNames) -> list[str]:
    """Names in the file of the model's tensors outside of layers."""
    stems = ["token_embd", "output_norm"] + ([] if config.tied else ["output"])
    return [names(f"{stem}.weight") for stem in stems]
