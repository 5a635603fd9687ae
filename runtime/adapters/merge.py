"""Adapters merged into a model's weights, for a model that is written anew: W + up @ down, row by row.

Rows are computed when they are read, so that no merged matrix is ever in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...quant.block import QTensor
from ...quant.checkpoint.lazy_rows import Index, lazy_tensor, row_numbers, sources
from ...quant.errors import UnsupportedModel
from ...quant.formats import FORMATS
from ...quant.gguf.metadata import quoted
from ..archs import ARCHS
from ..config.mla import MLAConfig
from ..config.model_config import ModelConfig
from ..config.tensor_names import TensorNames
from ..weights.binding import Weights, row_groups
from ..weights.expected import shapes
from ..weights.experts import PROJECTIONS
from .adapt import Changes
from .additions import HEADS, changed_heads, layer_of
from .low_rank import LowRank
from .places import EMBEDDINGS, grouped_rows


def merged_weights(weights: Weights, config: ModelConfig, found: Changes) -> Weights:
    """The weights of a folder with changes added to them, by name.

    Raises UnsupportedModel for what cannot be merged, naming the tensor.
    """
    changes = found.low_rank
    _check_tied(config, {*changes, *found.replaced})
    weights = weights.changed(found.replaced, {}, {})
    tensors: dict[str, QTensor] = {}
    experts: dict[tuple[int, str], tuple[QTensor, ...]] = {}
    heads: dict[int, tuple[tuple[QTensor, ...], tuple[QTensor, ...]]] = {}
    for name, change in changes.items():
        stem = name.removesuffix(".weight").split(".", 2)[-1]
        if name.endswith(HEADS) and config.mla:
            layer = layer_of(name)
            heads[layer] = changed_heads(weights.heads(layer), change, config.mla)
        elif stem.endswith("_exps"):
            layer = layer_of(name)
            matrices = weights.experts(layer).matrices[stem]
            each = (LowRank(down, up) for down, up in zip(change.down, change.up, strict=True))
            experts[layer, stem] = tuple(merged(m, one) for m, one in zip(matrices, each, strict=True))
        else:
            change = _of_table(change) if name == EMBEDDINGS else change
            tensors[name] = merged(weights.matrix(name), change)
            if change.bias is not None:
                bias = f"{name.removesuffix('.weight')}.bias"
                tensors[bias] = _plus_bias(bias, weights.bound.get(bias), change.bias)
    return weights.changed(tensors, experts, heads)


def merged_tensors(tensors: Mapping[str, QTensor], config: ModelConfig, found: Changes) -> dict[str, QTensor]:
    """The tensors of a GGUF file that changes touch, with these added, by their names in the file.

    Raises UnsupportedModel for what cannot be merged, naming the tensor.
    """
    changes = found.low_rank
    _check_tied(config, {*changes, *found.replaced})
    names = TensorNames(ARCHS[config.arch], tensors, True)
    whole = {names(name): tensor for name, tensor in found.replaced.items()}
    tensors = {**tensors, **whole}
    parts_of = _parts(config, names, changes)
    new = whole | {
        stored: merged(tensors[stored], _stacked(config, stored, parts, changes))
        for stored, parts in parts_of.items()
    }
    for name, change in changes.items():
        if change.bias is not None:
            bias = f"{name.removesuffix('.weight')}.bias"
            if len(parts_of[names(name)]) > 1:
                raise UnsupportedModel(f"tensor {quoted(bias)}: a bias of joined matrices cannot be merged")
            new[names(bias)] = _plus_bias(bias, tensors.get(names(bias)), change.bias)
        if name.endswith(HEADS) and config.mla and name not in tensors:
            keys, values = _head_stacks(change, config.n_heads, config.mla)
            for stem, stack in (("attn_k_b", keys), ("attn_v_b", values)):
                stored = name.replace("attn_kv_b", stem)
                new[stored] = merged(tensors[stored], stack)
    return new


def merged(tensor: QTensor, change: LowRank) -> QTensor:
    """A tensor plus a change, in F32. A change with a first dimension more is of a stack of matrices.

    Raises UnsupportedModel for a tensor that is not in floats.
    """
    if not tensor.format.is_float:
        raise UnsupportedModel(
            f"tensor {tensor.name} is {tensor.format.name}: adapters are merged into floats only; take the "
            "original model, or give the adapter with --lora when the model runs"
        )
    stack = change if change.down.ndim == 3 else LowRank(change.down[None], change.up[None])
    n_rows = stack.up.shape[1]

    def decode(index: Index) -> np.ndarray:
        numbers = row_numbers(index)
        rows = tensor.rows(numbers)
        for e in np.unique(numbers // n_rows).tolist():
            of_matrix = numbers // n_rows == e
            rows[of_matrix] += stack.up[e][numbers[of_matrix] % n_rows] @ stack.down[e]
        return np.ascontiguousarray(rows, np.float32).view(np.uint8)

    return lazy_tensor(tensor.name, FORMATS["F32"], tensor.shape, decode, sources(tensor))


def _parts(
    config: ModelConfig, names: TensorNames, changes: Mapping[str, LowRank]
) -> dict[str, list[tuple[str, int]]]:
    """The stored tensors that changes touch: names and rows of their parts."""
    parts: dict[str, list[tuple[str, int]]] = {}
    for name, shape in shapes(config):
        if len(shape) == 2 and name.endswith(".weight"):
            parts.setdefault(names(name), []).append((name, shape[0]))
    for i, layer in enumerate(config.layers if config.moe else ()):
        for stem in PROJECTIONS if layer.is_moe else ():
            name = f"blk.{i}.{stem}.weight"
            if stem in ARCHS[config.arch].layer:
                assert config.moe
                hidden = config.moe.latent_width or config.hidden
                rows = hidden if stem == PROJECTIONS[2] else config.moe.width
                parts.setdefault(names(name), []).append((name, rows))
    return {stored: each for stored, each in parts.items() if any(name in changes for name, _ in each)}


def _stacked(
    config: ModelConfig, stored: str, parts: Sequence[tuple[str, int]], changes: Mapping[str, LowRank]
) -> LowRank:
    """The changes of all parts of a stored tensor as one: each has ranks and rows of its own."""
    if len(parts) == 1:
        change = changes[parts[0][0]]
        return _of_table(change) if parts[0][0] == EMBEDDINGS else change
    found = [changes[name] for name, _ in parts if name in changes]
    down = np.concatenate([change.down for change in found], axis=-2)
    up = np.zeros((*down.shape[:-2], sum(rows for _, rows in parts), down.shape[-2]), np.float32)
    row = rank = 0
    for name, rows in parts:
        if name in changes:
            change = changes[name]
            up[..., row : row + rows, rank : rank + change.rank] = change.up
            rank += change.rank
        row += rows
    if groups := row_groups(config, stored, [name for name, _ in parts]):
        up = up[np.argsort(grouped_rows(*groups))]
    return LowRank(down, up)


def _head_stacks(change: LowRank, n_heads: int, mla: MLAConfig) -> tuple[LowRank, LowRank]:
    """A change of the matrix of all heads as changes of the stacks of keys, which are transposed, and
    values."""
    by_head = change.up.reshape(n_heads, -1, change.rank)
    down = np.broadcast_to(change.down, (n_heads, *change.down.shape))
    keys = LowRank(by_head[:, : mla.nope_dim].swapaxes(1, 2), down.swapaxes(1, 2))
    return keys, LowRank(down, by_head[:, mla.nope_dim :])


def _of_table(change: LowRank) -> LowRank:
    """A change of embeddings, whose table is (tokens, width)."""
    return LowRank(change.up.T, change.down.T)


def _plus_bias(name: str, bias: QTensor | None, added: np.ndarray) -> QTensor:
    if bias is None:
        raise UnsupportedModel(f"tensor {quoted(name)}: the adapter has a bias, but the model has none")
    values = np.ascontiguousarray(bias.dequantize() + added, np.float32)
    return QTensor(bias.name, FORMATS["F32"], bias.shape, values.view(np.uint8).reshape(1, -1))


def _check_tied(config: ModelConfig, changed: set[str]) -> None:
    both = {EMBEDDINGS, "output.weight"} & changed
    if config.tied and both:
        raise UnsupportedModel(
            f"tensor {quoted(min(both))}: embeddings and output matrix are one in this model, and the "
            "adapter changes only one of them, so that it cannot be merged"
        )
