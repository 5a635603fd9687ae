"""Weights: the tensors of a file bound to the places where a model needs them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ..quant.block import QTensor
from ..quant.errors import DamagedFile
from ..quant.formats import FORMATS
from .archs import ARCHS
from .config import Layer, ModelConfig
from .experts import ExpertTensors
from .latent import HeadTensors
from .names import Names
from .tensors import turned

# Buffers that some writers store although they follow from the configuration.
_DERIVED = re.compile(
    r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)|(.*\.)?(masked_bias|h\.\d+\.attn\.bias)"
    r"|(.*\.)?layers\.\d+\.attention\.bias|blk\.\d+\.attn_rot_embd\.weight"
)
# Read with the configuration.
_ROPE = re.compile(r"rope_(freqs|factors_long|factors_short)\.weight")
_OF_KEYS = frozenset({"attn_k", "attn_v", "attn_k_norm"})  # and values


def _shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that the model needs, by its GGUF name, with its shape."""
    c = config
    yield "token_embd.weight", (c.vocab_size, c.hidden)
    if c.learned_positions:
        yield "position_embd.weight", (c.context_length, c.hidden)
    if c.per_layer:
        width = c.n_layers * c.per_layer.width
        yield "per_layer_token_embd.weight", (c.per_layer.vocab_size, width)
        yield "per_layer_model_proj.weight", (width, c.hidden)
        yield "per_layer_proj_norm.weight", (c.per_layer.width,)
    for j in range(c.altup.streams - 1 if c.altup else 0):
        yield f"altup_proj.{j}.weight", (c.hidden, c.hidden)
        yield f"altup_unembd_proj.{j}.weight", (c.hidden, c.hidden)
    for i, layer in enumerate(c.layers):
        shapes = _shapes_of_layer(c, layer)
        for stem in _stems(c, layer):
            shape = shapes.get(stem, (c.hidden,))
            if stem != "exp_probs_b":
                yield f"blk.{i}.{stem}.weight", shape
            if stem in c.biases or stem == "exp_probs_b":
                yield f"blk.{i}.{stem}.bias", shape[:1]
    yield "output_norm.weight", (c.hidden,)
    if "output_norm" in c.biases:
        yield "output_norm.bias", (c.hidden,)
    if not c.tied:
        yield "output.weight", (c.vocab_size, c.hidden)
    if "output" in c.biases:
        yield "output.bias", (c.vocab_size,)


def _shapes_of_layer(config: ModelConfig, layer: Layer) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's tensors, by stem, but for those of [hidden]. Matrices: (outputs, inputs)."""
    c = config
    head_dim, kv_heads, ffn = c.sizes(layer)
    queries, keys = c.n_heads * head_dim, kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (queries, c.hidden),
        "attn_k": (keys, c.hidden),
        "attn_v": (keys, c.hidden),
        "attn_output": (c.hidden, queries),
        "attn_sinks": (c.n_heads,),
        "ffn_gate": (ffn, c.hidden),
        "ffn_up": (ffn, c.hidden),
        "ffn_down": (c.hidden, ffn),
        "attn_q_norm": (head_dim,),
        "attn_k_norm": (head_dim,),
        "layer_output_scale": (1,),
    }
    if c.qk_norm == "whole":
        shapes |= {"attn_q_norm": (queries,), "attn_k_norm": (keys,)}
    elif c.qk_norm == "each head":
        shapes |= {"attn_q_norm": (c.n_heads, head_dim), "attn_k_norm": (kv_heads, head_dim)}
    if c.experts:
        shared = c.experts.shared_width
        shapes |= {
            "ffn_gate_inp": (c.experts.count, c.hidden),
            "ffn_gate_inp_shexp": (1, c.hidden),
            "ffn_gate_shexp": (shared, c.hidden),
            "ffn_up_shexp": (shared, c.hidden),
            "ffn_down_shexp": (c.hidden, shared),
            "ffn_down_exps_scale": (c.experts.count,),
            "exp_probs_b": (c.experts.count,),
        }
    if c.latent:
        shapes |= {
            "attn_q_a": (c.latent.query_rank, c.hidden),
            "attn_q_a_norm": (c.latent.query_rank,),
            "attn_q_b": (queries, c.latent.query_rank),
            "attn_kv_a_mqa": (c.latent.cached, c.hidden),
            "attn_kv_a_norm": (c.latent.rank,),
            "attn_output": (c.hidden, c.n_heads * c.latent.value),
        }
    if c.per_layer:
        shapes |= {"inp_gate": (c.per_layer.width, c.hidden), "proj": (c.hidden, c.per_layer.width)}
    if c.altup:
        n, rank = c.altup.streams, c.altup.laurel_rank
        shapes |= {
            "altup_router": (n, c.hidden),
            "altup_predict_coef": (n * n, n),
            "altup_correct_coef": (n, n),
            "laurel_l": (rank, c.hidden),
            "laurel_r": (c.hidden, rank),
        }
    return shapes


_OF_EXPERTS = frozenset(
    {
        "ffn_gate_inp",
        "ffn_gate_inp_scale",
        "ffn_down_exps_scale",
        "pre_ffw_norm_2",
        "post_ffw_norm_1",
        "post_ffw_norm_2",
    }
)


def _stems(config: ModelConfig, layer: Layer) -> Iterator[str]:
    """What a layer has, but for the matrices of experts and of latent heads."""
    c, arch = config, ARCHS[config.arch]
    experts = c.experts if layer.experts else None
    absent = {"attn_k_b", "attn_v_b"} | (arch.norms - c.norms)
    if not experts or not experts.choice_bias:
        absent.add("exp_probs_b")
    if not experts:
        absent |= _OF_EXPERTS
    elif not experts.beside_dense:
        absent |= {"ffn_gate", "ffn_up", "ffn_down"}
    if layer.kv_from is not None:
        absent |= _OF_KEYS
    if layer.values_are_keys:
        absent.add("attn_v")
    if c.latent:
        absent |= {"attn_q"} if c.latent.query_rank else {"attn_q_a", "attn_q_b"}
    if not c.per_layer:
        absent |= {"inp_gate", "proj"}
    for stem in arch.layer:
        shared = stem.endswith("_shexp")
        if stem in absent or stem.endswith("_exps") or (shared and not (experts and experts.shared_width)):
            continue
        yield stem


class Weights:
    """The tensors of `config`'s model by their GGUF names, whatever the file calls them.

    Binding is strict: a tensor that is missing, left over or of another shape raises DamagedFile
    naming it. Left-overs that are meant to be skipped: derived buffers, an output matrix next to tied
    embeddings, and the parts of a larger model that the architecture's row lists. Projections that a
    file keeps in one tensor are views of its rows, if they lie side by side in it.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, QTensor]) -> None:
        arch = ARCHS[config.arch]
        names = Names(arch, tensors, config.from_gguf)
        self._norm_offset = np.float32(config.norm_offset)
        self._tensors: dict[str, QTensor] = {}
        together: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
        for name, shape in _shapes(config):
            together.setdefault(names(name), []).append((name, shape))
        for stored, parts in together.items():
            if stored not in tensors:
                raise DamagedFile(f"tensor {stored} is missing")
            tensor, shape = tensors[stored], parts[0][1]
            shape = (sum(part[0] for _, part in parts), *shape[1:])
            in_layer = parts[0][0].startswith("blk.")
            exchanged = arch.hf_transposed and not config.from_gguf and in_layer and len(shape) == 2
            needed = shape[::-1] if exchanged else shape
            stacked = len(tensor.shape) == 3 and (math.prod(tensor.shape[:2]), tensor.shape[2]) == needed
            if (1, *needed) == tensor.shape or (1, *tensor.shape) == needed or stacked:
                tensor = replace(tensor, shape=needed)
            if tensor.shape != needed:
                raise DamagedFile(f"tensor {stored} has shape {tensor.shape}, but the model needs {needed}")
            if exchanged:
                tensor = turned(tensor)
            if len(parts) > 1 and arch.hf_qkv_by_head and not config.from_gguf:
                tensor = _by_projection(tensor, stored, [part[0] for _, part in parts], config.head_dim)
            self._tensors |= _split(tensor, parts)
        self._experts: dict[int, ExpertTensors] = {}
        for i, layer in enumerate(config.layers):
            if layer.experts and config.experts:
                self._experts[i] = ExpertTensors(i, config.experts, config.hidden, arch, names, tensors)
        self._heads: list[HeadTensors] = []
        if c := config.latent:
            self._heads = [HeadTensors(i, c, config.n_heads, names, tensors) for i in range(config.n_layers)]
        used = set(together)
        used = used.union(*(experts.used for experts in self._experts.values()))
        used = used.union(*(heads.used for heads in self._heads))
        self._refuse_left_overs(config, set(tensors) - used, names)

    def _refuse_left_overs(self, config: ModelConfig, left: set[str], names: Names) -> None:
        if config.tied:
            left.discard(names("output.weight"))
        skip = () if config.from_gguf else ARCHS[config.arch].hf_skip
        skip += tuple(names.layer_prefix(config.n_layers + i) for i in range(config.extra_layers))
        for i, layer in enumerate(config.layers):
            if layer.kv_from is not None:  # some files have them all the same
                left -= {names(f"blk.{i}.{stem}.weight") for stem in _OF_KEYS & set(ARCHS[config.arch].layer)}
        for name in sorted(left):
            meant = _DERIVED.fullmatch(name) or (config.from_gguf and _ROPE.fullmatch(name))
            if not meant and not name.startswith(skip):
                raise DamagedFile(
                    f"tensor {name} has no place in a {config.arch} model of {config.n_layers} layers"
                )

    def matrix(self, name: str) -> QTensor:
        """The tensor called `name`, (outputs, inputs), as it lies in the file."""
        return self._tensors[name]

    def experts(self, layer: int) -> ExpertTensors:
        """The experts of a layer."""
        return self._experts[layer]

    def heads(self, layer: int) -> HeadTensors:
        """The matrices of the heads of a layer's latent attention."""
        return self._heads[layer]

    def vector(self, name: str) -> np.ndarray:
        """A bias or other vector as float32."""
        return self._tensors[name].dequantize()

    def norm(self, name: str) -> np.ndarray:
        """The weights of a norm as float32, ready to multiply with."""
        return self.vector(name) + self._norm_offset


def _split(tensor: QTensor, parts: list[tuple[str, tuple[int, ...]]]) -> dict[str, QTensor]:
    """`parts`, names and shapes, as consecutive rows of `tensor`; of a vector, consecutive values."""
    if len(parts) == 1:
        return {parts[0][0]: tensor}
    if len(tensor.shape) == 1:
        data = tensor.dequantize().view(np.uint8).reshape(len(tensor.dequantize()), -1)
        tensor = replace(tensor, format=FORMATS["F32"], data=data)
    split, start = {}, 0
    for name, shape in parts:
        data = tensor.data[start : start + shape[0]]
        split[name] = replace(tensor, shape=shape, data=data if len(shape) > 1 else data.reshape(1, -1))
        start += shape[0]
    return split


def _by_projection(tensor: QTensor, name: str, n_rows: list[int], head_dim: int) -> QTensor:
    """A copy whose rows, `n_rows` of each projection, are ordered by projection first, not by head."""
    if len(set(n_rows)) > 1:
        raise DamagedFile(
            f"tensor {name} goes by heads, which queries, keys and values must have alike many of"
        )
    rows = tensor.data.reshape(n_rows[0] // head_dim, len(n_rows), -1)
    return replace(tensor, data=np.ascontiguousarray(rows.swapaxes(0, 1)).reshape(tensor.data.shape))
