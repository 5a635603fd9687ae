"""Weights: the tensors of a file bound to the places where a model needs them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from ..quant.block import QTensor
from ..quant.errors import DamagedFile
from .archs import ARCHS, hf_name, hf_prefix
from .config import ModelConfig

# Buffers that some writers store although they follow from the configuration.
_DERIVED = re.compile(
    r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)|.*\.(masked_bias|attn\.bias)"
    r"|blk\.\d+\.attn_rot_embd\.weight"
)


def _shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that the model needs, by its GGUF name, with its shape."""
    c = config
    queries, keys = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    matrices = {  # (outputs, inputs)
        "attn_q": (queries, c.hidden),
        "attn_k": (keys, c.hidden),
        "attn_v": (keys, c.hidden),
        "attn_output": (c.hidden, queries),
        "ffn_gate": (c.ffn, c.hidden),
        "ffn_up": (c.ffn, c.hidden),
        "ffn_down": (c.hidden, c.ffn),
    }
    heads = {"attn_q_norm", "attn_k_norm"}
    yield "token_embd.weight", (c.vocab_size, c.hidden)
    if c.rope_divisors:
        yield "rope_freqs.weight", (c.layers[0].rope.dims // 2,)
    for i in range(c.n_layers):
        for stem in ARCHS[c.arch].layer:
            norm = (c.head_dim if stem in heads else c.hidden,)
            yield f"blk.{i}.{stem}.weight", matrices.get(stem, norm)
            if stem in c.biases:
                yield f"blk.{i}.{stem}.bias", matrices.get(stem, norm)[:1]
    yield "output_norm.weight", (c.hidden,)
    if not c.tied:
        yield "output.weight", (c.vocab_size, c.hidden)


class Weights:
    """The tensors of `config`'s model by their GGUF names, whatever the file calls them.

    Binding is strict: a tensor that is missing, left over or of another shape raises DamagedFile
    naming it. Left-overs that are meant to be skipped: derived buffers, an output matrix next to tied
    embeddings, and the parts of a larger model that the architecture's row lists.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, QTensor]) -> None:
        arch = ARCHS[config.arch]
        prefix = "" if config.from_gguf else hf_prefix(tensors)

        def in_file(name: str) -> str:
            return name if config.from_gguf else hf_name(arch, prefix, name)

        self._norm_offset = np.float32(config.norm_offset)
        self._tensors: dict[str, QTensor] = {}
        left = set(tensors)
        for name, shape in _shapes(config):
            stored = in_file(name)
            if stored not in tensors:
                raise DamagedFile(f"tensor {stored} is missing")
            tensor = tensors[stored]
            if tensor.shape != shape:
                raise DamagedFile(f"tensor {stored} has shape {tensor.shape}, but the model needs {shape}")
            self._tensors[name] = tensor
            left.discard(stored)
        if config.tied:
            left.discard(in_file("output.weight"))
        skip = () if config.from_gguf else arch.hf_skip
        for name in sorted(left):
            if not _DERIVED.fullmatch(name) and not name.startswith(skip):
                raise DamagedFile(
                    f"tensor {name} has no place in a {config.arch} model of {config.n_layers} layers"
                )

    def matrix(self, name: str) -> QTensor:
        """The tensor called `name`, (outputs, inputs), as it lies in the file."""
        return self._tensors[name]

    def vector(self, name: str) -> np.ndarray:
        """A bias or other vector as float32."""
        return self._tensors[name].dequantize()

    def norm(self, name: str) -> np.ndarray:
        """The weights of a norm as float32, ready to multiply with."""
        return self.vector(name) + self._norm_offset
