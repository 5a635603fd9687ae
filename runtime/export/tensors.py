"""The tensors of a GGUF file for a model from a Hugging Face folder.

Names, row orders and shapes are those that llama.cpp's converter gives to files of each architecture. The
export starts from `Weights`, where each projection is a tensor of its own, even if the checkpoint joins
several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...quant.errors import UnsupportedModel
from ...quant.gguf.gathered import GatheredTensor, file_order_key
from ..archs import ARCHS
from ..config.model_config import ModelConfig
from ..config.recurrent import RecurrentConfig
from ..weights.binding import Weights, row_groups
from ..weights.expected import shapes
from ..weights.experts import PROJECTIONS
from .rope import rope_tensors

_BARE = ("ssm_a", "ssm_d", "ffn_gate_inp.scale", "ffn_down_exps.scale")  # names without ".weight"


def exported_tensors(config: ModelConfig, weights: Weights) -> list[GatheredTensor]:
    """All tensors of the file in file order; `config` and `weights` are those of a Hugging Face folder.

    Raises UnsupportedModel for tensors that the format cannot hold.
    """
    tensors = [
        *_bound(config, weights),
        *_experts(config, weights),
        *_heads(config, weights),
        *rope_tensors(config),
    ]
    if splits_output(config):
        table, scale = weights.matrix("token_embd.weight"), None
        if ARCHS[config.arch].multipliers_in_gguf_weights:
            scale = np.full(table.shape[0], config.logit_scale, np.float32)
        tensors.append(GatheredTensor("output.weight", table.shape, (table,), scale=scale))
    return sorted(tensors, key=lambda tensor: file_order_key(tensor.name))


def splits_output(config: ModelConfig) -> bool:
    """Whether a model with tied embeddings needs an output matrix in the file.

    It does if embeddings and output have different scales that go into the weights, or if readers require
    one.
    """
    arch = ARCHS[config.arch]
    scaled = arch.multipliers_in_gguf_weights and config.embed_scale != config.logit_scale
    return config.tied and (scaled or arch.output_in_gguf)


def permutes(config: ModelConfig) -> bool:
    """Whether rows of queries and keys are permuted for RoPE.

    Files of some architectures rotate pairs of neighbouring rows, checkpoints pair the halves of a head.
    """
    ropes = [layer.rope for layer in config.layers if layer.rope]
    return ARCHS[config.arch].interleaved_in_gguf and any(not rope.interleaved for rope in ropes)


def _bound(config: ModelConfig, weights: Weights) -> Iterator[GatheredTensor]:
    """All tensors but stacks of matrices (`_experts`, `_heads`)."""
    joined_names: dict[str, list[str]] = {}
    for name, _ in shapes(config):
        joined_names.setdefault(gguf_name(config, name), []).append(name)
    as_gguf = replace(config, from_gguf=True)
    for stored, names in joined_names.items():
        parts = [_part(config, weights, name) for name in names]
        if len(parts) == 1:
            shape = _shape(config, stored, parts[0].shape)
            if shape == parts[0].shape:
                yield replace(parts[0], name=stored)
            else:
                values = parts[0].rows(0, parts[0].n_rows).dequantize()
                yield GatheredTensor.from_values(stored, values.reshape(shape))
            continue
        if names[0].startswith("altup"):  # stacked
            matrices = tuple(part.parts[0] for part in parts)
            yield GatheredTensor(stored, (len(parts), *parts[0].shape), matrices)
            continue
        if len(parts[0].shape) == 1:
            values = np.concatenate([part.rows(0, 1).dequantize().reshape(-1) for part in parts])
            yield GatheredTensor.from_values(stored, values)
            continue
        joined = _concatenated(stored, parts)
        if groups := row_groups(as_gguf, stored, names):
            order = _by_groups(*groups)
            joined = replace(joined, order=order if joined.order is None else joined.order[order])
        yield joined


def _concatenated(name: str, parts: list[GatheredTensor]) -> GatheredTensor:
    """The rows of all `parts`, one part after the other."""
    orders, scales, start = [], [], 0
    for part in parts:
        stored_rows = sum(len(tensor.data) for tensor in part.parts)
        orders.append(start + (np.arange(part.n_rows) if part.order is None else part.order))
        scales.append(np.ones(part.n_rows, np.float32) if part.scale is None else part.scale)
        start += stored_rows
    unordered = all(part.order is None for part in parts)
    unscaled = all(part.scale is None for part in parts)
    return GatheredTensor(
        name,
        (sum(part.n_rows for part in parts), parts[0].width),
        tuple(tensor for part in parts for tensor in part.parts),
        None if unordered else np.concatenate(orders),
        scale=None if unscaled else np.concatenate(scales),
    )


def _by_groups(groups: int, n_rows: list[int]) -> np.ndarray:
    """The row order that interleaves projections group by group; a group has `n_rows` of each projection."""
    starts = np.cumsum([0, *n_rows]) * groups
    each = [
        start + np.arange(n * groups).reshape(groups, n) for start, n in zip(starts, n_rows, strict=False)
    ]
    return np.concatenate(each, axis=1).reshape(-1)


def _part(config: ModelConfig, weights: Weights, name: str) -> GatheredTensor:
    """The tensor `name` of `shapes` with the row order and the values that a file has."""
    c, (stem, _, kind) = config, name.rpartition(".")
    stem = stem.rpartition(".")[2] if stem.startswith("blk.") else stem
    tensor = weights.matrix(name)
    if stem == "ssm_a":
        values = weights.decay(name)
        return GatheredTensor.from_values(name, _tiled(c, values, values.shape))
    if stem.endswith("norm") and stem != "ssm_norm" and kind == "weight":
        values = weights.norm(name)
        if c.qk_norm == "head" and stem in ("attn_q_norm", "attn_k_norm") and permutes(c):
            values = values[_pairs(1, len(values), _rotated(c, name))]
        return GatheredTensor.from_values(name, values)
    order = row_order(c, name)
    scale = _scale(c, stem)
    if len(tensor.shape) == 1 or stem == "ssm_conv1d":
        values = tensor.dequantize()
        if scale is not None and kind == "bias":
            if stem not in ("ssm_mix", "ssm_z", "ssm_step"):
                raise UnsupportedModel(f"tensor {name}: GGUF cannot hold a bias behind a scaled {stem}")
            values = values * (np.float32(scale) / np.float32(c.multipliers.recurrent_in))
        return GatheredTensor.from_values(name, values if order is None else values[order])
    columns = column_order(c, stem)
    rows = None if scale is None else np.broadcast_to(np.float32(scale), (tensor.shape[0],))
    rows = rows if rows is None or order is None else rows[order]
    return GatheredTensor(name, tensor.shape, (tensor,), order, columns, rows)


def row_order(c: ModelConfig, name: str) -> np.ndarray | None:
    """The row order in the file of the tensor `name` of `shapes`, None if it is the checkpoint's.

    Row i of the file's tensor is row order[i] of the checkpoint's.
    """
    stem, r = name.split(".")[-2], c.recurrence
    if stem in ("attn_q", "attn_k") and permutes(c) and not c.mla:
        layer = c.layers[int(name.split(".")[1])]
        head_dim, kv_heads, _ = c.sizes(layer)
        return _pairs(c.n_heads if stem == "attn_q" else kv_heads, head_dim, _rotated(c, name))
    if not r or not _is_tiled(c):
        return None
    if stem == "ssm_z":
        return _tiled_heads(r, r.head_dim)
    if stem in ("ssm_beta", "ssm_step", "ssm_dt"):
        return _tiled_heads(r, 1)
    if stem in ("ssm_mix", "ssm_conv1d"):
        keys = r.channels - r.inner
        return np.concatenate([np.arange(keys), keys + _tiled_heads(r, r.head_dim)])
    return None


def column_order(c: ModelConfig, stem: str) -> np.ndarray | None:
    """The column order in the file of a matrix, None if it is the checkpoint's."""
    if stem == "ssm_out" and c.recurrence and _is_tiled(c):
        return _tiled_heads(c.recurrence, c.recurrence.head_dim)
    return None


def _rotated(c: ModelConfig, name: str) -> int:
    """The rotated dimensions of a head; a layer without RoPE has those of the first layer with it."""
    layer = c.layers[int(name.split(".")[1])]
    rope = layer.rope or next(layer.rope for layer in c.layers if layer.rope)
    return rope.dims


def _pairs(heads: int, head_dim: int, dims: int) -> np.ndarray:
    """The row order that puts the two rows of each RoPE pair side by side, from heads that pair their halves.

    Only the first `dims` rows of a head are rotated.
    """
    rows = np.arange(heads * head_dim).reshape(heads, head_dim)
    halves = rows[:, :dims].reshape(heads, 2, dims // 2)
    return np.concatenate([halves.swapaxes(1, 2).reshape(heads, dims), rows[:, dims:]], axis=1).reshape(-1)


def _is_tiled(c: ModelConfig) -> bool:
    """Whether the file has the heads of recurrent layers in another order (see RecurrentConfig.tiled)."""
    r = c.recurrence
    return bool(r and ARCHS[c.arch].tiled_in_gguf and not r.tiled and r.groups not in (1, r.heads))


def _tiled_heads(r: RecurrentConfig, head_dim: int) -> np.ndarray:
    """The row order that goes round the groups head by head, from heads that are ordered by group."""
    rows = np.arange(r.heads * head_dim).reshape(r.groups, r.heads // r.groups, head_dim)
    return rows.swapaxes(0, 1).reshape(-1)


def _tiled(c: ModelConfig, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The decay rates of heads in the order and shape that a file has."""
    if c.recurrence and _is_tiled(c):
        values = values[_tiled_heads(c.recurrence, 1)]
    return values.reshape(shape)


def _scale(c: ModelConfig, stem: str) -> np.ndarray | float | None:
    """The factors of a matrix's rows, where GGUF has no keys for a model's scales; None for 1."""
    if not ARCHS[c.arch].multipliers_in_gguf_weights:
        return None
    s, r = c.multipliers, c.recurrence
    parts = r.part_scales if r else (1.0,) * 5
    scale: np.ndarray | float = {
        "token_embd": c.embed_scale,
        "output": c.logit_scale,
        "attn_q": s.attention_in,
        "attn_k": s.attention_in * s.key,
        "attn_v": s.attention_in,
        "attn_output": s.attention_out,
        "ffn_gate": s.gate,
        "ffn_down": s.down,
        "ssm_out": s.recurrent_out,
        "ssm_z": s.recurrent_in * parts[0],
        "ssm_step": s.recurrent_in * parts[4],
    }.get(stem, 1.0)
    if stem == "ssm_mix" and r:
        grouped = r.groups * r.state_size
        scale = np.repeat(np.array(parts[1:4]), (r.inner, grouped, grouped)) * s.recurrent_in
    return None if isinstance(scale, float) and scale == 1.0 else scale


def _shape(config: ModelConfig, stored: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in the file of the tensor `stored`."""
    stem, r = stored.removesuffix(".weight").rpartition(".")[2], config.recurrence
    if stem == "ffn_gate_inp_shexp":
        return shape[1:]
    if r and r.kind == "mamba2":
        if stem in ("ssm_a", "ssm_d"):
            return (*shape, 1)
        if stem == "ssm_norm":
            return (r.groups, r.inner // r.groups)
    return shape


def gguf_name(config: ModelConfig, name: str) -> str:
    """The file's name of the tensor that `Weights` calls `name`."""
    arch = ARCHS[config.arch]
    stem, _, kind = name.rpartition(".")
    layer = ""
    if stem.startswith("blk."):
        _, number, stem = stem.split(".")
        layer = f"blk.{number}."
        stem = arch.fused_in_gguf.get(stem, stem)
    if stem.startswith(("altup_proj.", "altup_unembd_proj.")):  # matrices that are stacked in the file
        stem = stem.partition(".")[0]
    stem = arch.gguf_names.get(stem, stem)
    bare = stem in _BARE or stem in arch.bare_in_gguf
    return f"{layer}{stem}" if bare else f"{layer}{stem}.{kind}"


def _experts(config: ModelConfig, weights: Weights) -> Iterator[GatheredTensor]:
    """The stacks of experts' matrices, and of their biases."""
    arch = ARCHS[config.arch]
    for i, layer in enumerate(config.layers):
        if not (layer.is_moe and config.moe):
            continue
        experts = weights.experts(i)
        joined_stems: dict[str, list[str]] = {}
        for stem in PROJECTIONS:
            if stem in experts.matrices:
                joined_stems.setdefault(arch.fused_in_gguf.get(stem, stem), []).append(stem)
        for stored, stems in joined_stems.items():
            of_experts = zip(*(experts.matrices[stem] for stem in stems), strict=True)
            matrices = tuple(matrix for of_expert in of_experts for matrix in of_expert)
            rows = sum(experts.matrices[stem][0].shape[0] for stem in stems)
            shape = (config.moe.n_experts, rows, matrices[0].shape[1])
            yield GatheredTensor(f"blk.{i}.{stored}.weight", shape, matrices)
            biases = [experts.biases[stem] for stem in stems if stem in experts.biases]
            if biases:
                yield GatheredTensor.from_values(f"blk.{i}.{stored}.bias", np.concatenate(biases, axis=1))


def _heads(config: ModelConfig, weights: Weights) -> Iterator[GatheredTensor]:
    """The stacks of the heads' matrices of latent attention (MLA)."""
    for i in range(config.n_layers if config.mla else 0):
        heads = weights.heads(i)
        for stem, matrices in (("attn_k_b", heads.keys), ("attn_v_b", heads.values)):
            yield GatheredTensor(f"blk.{i}.{stem}.weight", (len(matrices), *matrices[0].shape), matrices)
