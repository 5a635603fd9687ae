"""Weights: the tensors of a file bound to the places where a model needs them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...quant.block import QTensor
from ...quant.checkpoint.lazy_rows import is_lazy
from ...quant.errors import DamagedFile
from ...quant.formats import FORMATS
from ..archs import ARCHS
from ..config.from_files import ModelConfig
from ..config.latent import HeadTensors
from ..config.moe import ExpertTensors
from ..config.names import Names
from .expected import OF_KEYS, shapes
from .tensors import turned

# Buffers that some writers store although they follow from the configuration.
_DERIVED = re.compile(
    r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)|(.*\.)?(masked_bias|h\.\d+\.attn\.bias)"
    r"|(.*\.)?layers\.\d+\.attention\.bias|blk\.\d+\.attn_rot_embd\.weight"
)
# Read with the configuration.
_ROPE = re.compile(r"rope_(freqs|factors_long|factors_short)\.weight")


class Weights:
    """The tensors of `config`'s model by their GGUF names, whatever the file calls them.

    Binding is strict: a tensor that is missing, left over or of another shape raises DamagedFile
    naming it. Left-overs that are meant to be skipped: derived buffers, an output matrix next to tied
    embeddings, and the parts of a larger model that the architecture's row lists. Projections that a
    file keeps in one tensor are views of its rows, if they lie side by side in it. `skipped`
    says which parts of a larger model were left, and how many tensors each has.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, QTensor]) -> None:
        arch = ARCHS[config.arch]
        names = Names(arch, tensors, config.from_gguf)
        self._from_gguf = config.from_gguf
        self._norm_offset = np.float32(config.norm_offset)
        self._tensors: dict[str, QTensor] = {}
        together: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
        for name, shape in shapes(config):
            together.setdefault(names(name), []).append((name, shape))
        for stored, parts in together.items():
            if stored not in tensors:
                raise DamagedFile(f"tensor {stored} is missing")
            tensor, shape = tensors[stored], parts[0][1]
            shape = (sum(part[0] for _, part in parts), *shape[1:])
            in_layer = parts[0][0].startswith("blk.")
            exchanged = arch.hf_transposed and not config.from_gguf and in_layer and len(shape) == 2
            exchanged = exchanged and not is_lazy(tensor)  # packers turn matrices the usual way
            needed = shape[::-1] if exchanged else shape
            stacked = len(tensor.shape) == 3 and (math.prod(tensor.shape[:2]), tensor.shape[2]) == needed
            if stacked or _is_same(tensor.shape, needed) or parts[0][0].endswith("ssm_norm.weight"):
                tensor = _reshaped(tensor, needed)
            if tensor.shape != needed:
                raise DamagedFile(f"tensor {stored} has shape {tensor.shape}, but the model needs {needed}")
            if exchanged:
                tensor = turned(tensor)
            if order := groups_of_rows(config, stored, [name for name, _ in parts]):
                tensor = _by_projection(tensor, *order)
            self._tensors |= _split(tensor, parts)
        self._experts: dict[int, ExpertTensors] = {}
        for i, layer in enumerate(config.layers):
            if layer.experts and config.experts:
                self._experts[i] = ExpertTensors(
                    i, config.experts, config.experts.latent or config.hidden, arch, names, tensors
                )
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
                left -= {names(f"blk.{i}.{stem}.weight") for stem in OF_KEYS & set(ARCHS[config.arch].layer)}
            if config.latent and config.from_gguf:  # next to the matrices that it is made of
                left.discard(f"blk.{i}.attn_kv_b.weight")
        skipped: dict[str, int] = {}
        for name in sorted(left):
            meant = _DERIVED.fullmatch(name) or (config.from_gguf and _ROPE.fullmatch(name))
            if part := next((prefix for prefix in skip if name.startswith(prefix)), None):
                skipped[part] = skipped.get(part, 0) + 1
            elif not meant:
                raise DamagedFile(
                    f"tensor {name} has no place in a {config.arch} model of {config.n_layers} layers"
                )

        self.skipped = {f"{part.rstrip('._')} ({n} tensors)" for part, n in skipped.items()}

    @property
    def bound(self) -> Mapping[str, QTensor]:
        """All tensors by their GGUF names, but for those of experts and heads."""
        return self._tensors

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

    def optional(self, name: str) -> np.ndarray | None:
        """A vector as float32, or None if the model has none."""
        return self.vector(name) if name in self._tensors else None

    def decay(self, name: str) -> np.ndarray:
        """A recurrence's decay rates, below 0: files that are not GGUF have ln(-rate)."""
        stored = self.vector(name)
        return stored if self._from_gguf else -np.exp(stored)

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


def _is_same(shape: tuple[int, ...], needed: tuple[int, ...]) -> bool:
    """Whether two shapes only differ by dimensions of 1."""
    return [n for n in shape if n != 1] == [n for n in needed if n != 1]


def _reshaped(tensor: QTensor, shape: tuple[int, ...]) -> QTensor:
    """The same values in another shape, if it takes as many; rows of blocks must be left whole."""
    if tensor.shape == shape or math.prod(tensor.shape) != math.prod(shape):
        return tensor
    return replace(tensor, shape=shape, data=tensor.data.reshape(math.prod(shape[:-1]), -1))


def groups_of_rows(config: ModelConfig, stored: str, names: list[str]) -> tuple[int, list[int]] | None:
    """How many groups the rows of a tensor that is kept for several projections come in, and how many rows of
    each projection are in a group; None if the projections just follow each other."""
    arch, c, r = ARCHS[config.arch], config, config.recurrence
    stems = [name.split(".")[2] for name in names if name.startswith("blk.")]
    if stems == ["attn_q", "attn_q_gate"]:
        return c.n_heads, [c.head_dim] * 2
    if len(stems) > 1 and arch.hf_qkv_by_head and not c.from_gguf:
        if c.n_heads != c.n_kv_heads:
            raise DamagedFile(
                f"tensor {stored} goes by heads, which queries, keys and values must have alike many of"
            )
        return c.n_heads, [c.head_dim] * 3
    if r and stems == ["ssm_mix", "ssm_z"]:
        values = r.inner // r.groups
        return r.groups, [r.state_size, r.state_size, values, values]
    if r and stems == ["ssm_beta", "ssm_step"]:
        return r.groups, [r.heads // r.groups] * 2
    return None


def _by_projection(tensor: QTensor, groups: int, n_rows: list[int]) -> QTensor:
    """A copy whose rows are ordered by projection first; each of `groups` groups has `n_rows` of them."""
    rows = tensor.data.reshape(groups, sum(n_rows), -1)
    parts = np.split(rows, np.cumsum(n_rows)[:-1], axis=1)
    data = np.concatenate([part.reshape(-1, rows.shape[-1]) for part in parts])
    return replace(tensor, data=data.reshape(tensor.data.shape))
