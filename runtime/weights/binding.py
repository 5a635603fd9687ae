"""Weights: the tensors of a file, bound to the names under which the forward pass reads them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from copy import copy

import numpy as np

from ...quant.block import QTensor
from ...quant.checkpoint.buffers import is_buffer
from ...quant.checkpoint.lazy_rows import is_lazy
from ...quant.errors import DamagedFile
from ..archs import ARCHS, Arch
from ..config.model_config import ModelConfig
from ..config.tensor_names import TensorNames
from .expected import KV_STEMS, shapes
from .experts import ExpertTensors
from .mla_heads import HeadTensors
from .tensors import by_projection, reshaped, same_but_ones, split_rows, transposed

# Tensors of GGUF files that are read with the configuration, or follow from it.
_ROPE = re.compile(r"rope_(freqs|factors_long|factors_short)\.weight|blk\.\d+\.attn_rot_embd\.weight")
# Prefixes of the vision and audio parts of GGUF files that have them beside the text model.
_BESIDE_TEXT = ("v.", "a.", "mm.", "mm_", "resampler.", "adapter.")

Part = tuple[str, tuple[int, ...]]  # inside name and shape of a tensor that is all or part of a stored one


class Weights:
    """The tensors of `config`'s model by their GGUF names, whatever the file calls them.

    Binding is strict: a tensor that is missing, of another shape, or has no place in the model raises
    DamagedFile naming it. Four kinds of tensors are skipped: buffers that follow from the configuration, an
    output matrix next to tied embeddings, keys and values of layers that share those of another layer, and
    the vision and audio parts of a larger model (of a folder, the parts that the architecture's row lists).
    Projections that a file keeps in one fused tensor are views of its rows if they are consecutive. `skipped`
    has a line for each skipped part of a larger model.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, QTensor]) -> None:
        arch = ARCHS[config.arch]
        names = TensorNames(arch, tensors, config.from_gguf)
        self._from_gguf = config.from_gguf
        self._norm_offset = np.float32(config.norm_offset)
        parts_of: dict[str, list[Part]] = {}  # by the name of the stored tensor
        for name, shape in shapes(config):
            parts_of.setdefault(names(name), []).append((name, shape))
        self._tensors: dict[str, QTensor] = {}
        for stored, parts in parts_of.items():
            self._tensors |= _bind(config, arch, tensors, stored, parts)
        self._experts: dict[int, ExpertTensors] = {}
        if moe := config.moe:
            hidden = moe.latent_width or config.hidden
            for i, layer in enumerate(config.layers):
                if layer.is_moe:
                    self._experts[i] = ExpertTensors(i, moe, hidden, arch, names, tensors)
        self._heads: list[HeadTensors] = []
        if mla := config.mla:
            heads, layers = config.n_heads, range(config.n_layers)
            self._heads = [HeadTensors(i, mla, heads, names, tensors) for i in layers]
        used = set(parts_of)
        used = used.union(*(experts.used for experts in self._experts.values()))
        used = used.union(*(heads.used for heads in self._heads))
        left_over = set(tensors) - used - _unused_beside(config, arch, names)
        self.skipped = _skipped_parts(config, arch, names, left_over)

    def changed(
        self,
        tensors: Mapping[str, QTensor],
        experts: Mapping[tuple[int, str], tuple[QTensor, ...]],
        heads: Mapping[int, tuple[tuple[QTensor, ...], tuple[QTensor, ...]]],
    ) -> Weights:
        """A copy with other tensors by their GGUF names, experts by layer and stem, and heads by layer."""
        other = copy(self)
        other._tensors = {**self._tensors, **tensors}
        other._experts = {layer: copy(each) for layer, each in self._experts.items()}
        for (layer, stem), matrices in experts.items():
            other._experts[layer].matrices = {**other._experts[layer].matrices, stem: matrices}
        other._heads = [copy(each) for each in self._heads]
        for layer, (keys, values) in heads.items():
            other._heads[layer].keys, other._heads[layer].values = keys, values
        return other

    @property
    def bound(self) -> Mapping[str, QTensor]:
        """All tensors by their GGUF names, except the matrices of experts and of MLA heads."""
        return self._tensors

    def matrix(self, name: str) -> QTensor:
        """The tensor called `name`, (outputs, inputs), as it is stored in the file."""
        return self._tensors[name]

    def experts(self, layer: int) -> ExpertTensors:
        """The experts of a layer."""
        return self._experts[layer]

    def heads(self, layer: int) -> HeadTensors:
        """The matrices of the heads of a layer's multi-head latent attention."""
        return self._heads[layer]

    def vector(self, name: str) -> np.ndarray:
        """A bias or other vector as float32."""
        return self._tensors[name].dequantize()

    def optional(self, name: str) -> np.ndarray | None:
        """A vector as float32, or None if the model has none."""
        return self.vector(name) if name in self._tensors else None

    def decay(self, name: str) -> np.ndarray:
        """The decay rates of a recurrence, float32 below 0. Files other than GGUF store ln(-rate)."""
        stored = self.vector(name)
        return stored if self._from_gguf else -np.exp(stored)

    def norm(self, name: str) -> np.ndarray:
        """The weights of a norm as float32, with `ModelConfig.norm_offset` added."""
        return self.vector(name) + self._norm_offset


def _bind(
    config: ModelConfig, arch: Arch, tensors: Mapping[str, QTensor], stored: str, parts: list[Part]
) -> dict[str, QTensor]:
    """The tensor called `stored` in the file, as the `parts` that it is fused of. Raises DamagedFile."""
    if stored not in tensors:
        raise DamagedFile(f"tensor {stored} is missing")
    tensor, (first, shape) = tensors[stored], parts[0]
    shape = (sum(part[0] for _, part in parts), *shape[1:])
    is_transposed = arch.hf_transposed and not config.from_gguf and first.startswith("blk.")
    # Packed formats store matrices as (outputs, inputs) even where the architecture does not.
    is_transposed = is_transposed and len(shape) == 2 and not is_lazy(tensor)
    needed = shape[::-1] if is_transposed else shape
    stacked = len(tensor.shape) == 3 and (math.prod(tensor.shape[:2]), tensor.shape[2]) == needed
    if stacked or same_but_ones(tensor.shape, needed) or first.endswith("ssm_norm.weight"):
        tensor = reshaped(tensor, needed)
    if tensor.shape != needed:
        raise DamagedFile(f"tensor {stored} has shape {tensor.shape}, but the model needs {needed}")
    if is_transposed:
        tensor = transposed(tensor)
    if groups := row_groups(config, stored, [name for name, _ in parts]):
        tensor = by_projection(tensor, *groups)
    return split_rows(tensor, parts)


def row_groups(config: ModelConfig, stored: str, names: list[str]) -> tuple[int, list[int]] | None:
    """The groups of rows in a fused tensor: their number, and the rows of each projection in a group.

    `names` are the projections in the tensor called `stored`. None if they follow each other. Raises
    DamagedFile.
    """
    arch, c, r = ARCHS[config.arch], config, config.recurrence
    stems = [name.split(".")[2] for name in names if name.startswith("blk.")]
    if stems == ["attn_q", "attn_q_gate"]:
        return c.n_heads, [c.head_dim] * 2
    if len(stems) > 1 and arch.hf_qkv_by_head and not c.from_gguf:
        if c.n_heads != c.n_kv_heads:
            raise DamagedFile(
                f"tensor {stored} is ordered by heads, which needs as many key-value heads as query heads"
            )
        return c.n_heads, [c.head_dim] * 3
    if r and stems == ["ssm_mix", "ssm_z"]:
        values = r.inner // r.groups
        return r.groups, [r.state_size, r.state_size, values, values]
    if r and stems == ["ssm_beta", "ssm_step"]:
        return r.groups, [r.heads // r.groups] * 2
    return None


def _unused_beside(config: ModelConfig, arch: Arch, names: TensorNames) -> set[str]:
    """Names in the file of tensors that some files have although the model does not use them."""
    unused = {names("output.weight")} if config.tied and "output" in arch.hf_top else set()
    for i, layer in enumerate(config.layers):
        if layer.kv_from is not None:
            unused |= {names(f"blk.{i}.{stem}.weight") for stem in KV_STEMS & set(arch.layer)}
        if config.mla and config.from_gguf:  # next to attn_k_b and attn_v_b, which have the same values
            unused.add(f"blk.{i}.attn_kv_b.weight")
    return unused


def _skipped_parts(config: ModelConfig, arch: Arch, names: TensorNames, left_over: set[str]) -> set[str]:
    """A line for each part of a larger model in `left_over`. Raises DamagedFile for any other tensor."""
    prefixes = _BESIDE_TEXT if config.from_gguf else arch.hf_skip
    prefixes += tuple(names.layer_prefix(config.n_layers + i) for i in range(config.mtp_layers))
    counts: dict[str, int] = {}
    for name in sorted(left_over):
        known = _ROPE.fullmatch(name) if config.from_gguf else is_buffer(name) or names.is_of_head(name)
        if part := next((prefix for prefix in prefixes if name.startswith(prefix)), None):
            counts[part] = counts.get(part, 0) + 1
        elif not known:
            raise DamagedFile(
                f"tensor {name} has no place in a {config.arch} model of {config.n_layers} layers"
            )
    return {f"{part.rstrip('._')} ({n} tensors)" for part, n in counts.items()}
