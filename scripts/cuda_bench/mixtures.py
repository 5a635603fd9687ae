"""Random mixtures of experts in the shape of published ones, for bench_cuda.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.ops import Program
from kukri.runtime.program.build import build_program
from kukri.runtime.weights.binding import Weights

POOL_BYTES = 1 << 26  # of random blocks that matrices are cut out of


@dataclass(frozen=True)
class Mixture:
    """`experts_kind`: the type of experts' matrices, where it is not that of the others."""

    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    chosen: int
    ffn: int
    vocab: int
    experts_kind: str = ""


MIXTURES = {
    "qwen3-30b-a3b": Mixture("qwen3moe", 2048, 48, 32, 4, 128, 128, 8, 768, 151936),
    "gpt-oss-20b": Mixture("gpt-oss", 2880, 24, 64, 8, 64, 32, 4, 2880, 201088, "MXFP4"),
}


def random_mixture(shape: str, kind: str, layers: int = 0) -> Program:
    """A program whose weights are random blocks, `kind` those outside of experts; of so many layers if it is
    not 0."""
    mixture = MIXTURES[shape]
    mixture = replace(mixture, layers=layers or mixture.layers)
    tensors = _Tensors().of(mixture, kind)
    config = config_from_gguf(_metadata(mixture), tensors)
    return build_program(config, Weights(config, tensors))


class _Tensors:
    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._pools: dict[str, np.ndarray] = {}
        self._made: dict[str, QTensor] = {}

    def of(self, m: Mixture, kind: str) -> dict[str, QTensor]:
        oss = m.architecture == "gpt-oss"
        experts = m.experts_kind or kind
        self._matrix("token_embd", (m.vocab, m.hidden), kind)
        self._matrix("output", (m.vocab, m.hidden), kind)
        self._floats("output_norm.weight", np.ones(m.hidden))
        for i in range(m.layers):
            layer = f"blk.{i}."
            norms = ["attn_norm", "post_attention_norm" if oss else "ffn_norm"]
            for name in norms:
                self._floats(f"{layer}{name}.weight", np.ones(m.hidden))
            for name in () if oss else ("attn_q_norm", "attn_k_norm"):
                self._floats(f"{layer}{name}.weight", np.ones(m.head_dim))
            for name, heads in (("attn_q", m.heads), ("attn_k", m.kv_heads), ("attn_v", m.kv_heads)):
                self._matrix(layer + name, (heads * m.head_dim, m.hidden), kind, biased=oss)
            self._matrix(f"{layer}attn_output", (m.hidden, m.heads * m.head_dim), kind, biased=oss)
            router = self._rng.standard_normal((m.experts, m.hidden))
            self._floats(f"{layer}ffn_gate_inp.weight", router)
            if oss:
                self._floats(f"{layer}attn_sinks.weight", np.ones(m.heads))
                self._floats(f"{layer}ffn_gate_inp.bias", np.ones(m.experts))
            for name, rows, width in (
                ("gate", m.ffn, m.hidden),
                ("up", m.ffn, m.hidden),
                ("down", m.hidden, m.ffn),
            ):
                self._matrix(f"{layer}ffn_{name}_exps", (m.experts, rows, width), experts, biased=oss)
        return self._made

    def _matrix(self, name: str, shape: tuple[int, ...], kind: str, biased: bool = False) -> None:
        form = FORMATS[kind]
        n_rows = int(np.prod(shape[:-1]))
        size, pool = n_rows * form.row_bytes(shape[-1]), self._pool(kind)
        data = np.resize(pool, size) if size > len(pool) else pool[:size]
        self._made[f"{name}.weight"] = QTensor(f"{name}.weight", form, shape, data.reshape(n_rows, -1))
        if biased:
            self._floats(f"{name}.bias", np.ones(shape[:-1]))

    def _floats(self, name: str, values: np.ndarray) -> None:
        rows = 1 if values.ndim == 1 else len(values)
        data = values.astype(np.float32).reshape(rows, -1).view(np.uint8)
        self._made[name] = QTensor(name, FORMATS["F32"], values.shape, data)

    def _pool(self, kind: str) -> np.ndarray:
        if kind not in self._pools:
            size = FORMATS[kind].type_size
            pool = self._rng.integers(0, 256, POOL_BYTES // size * size, dtype=np.uint8)
            blocks = pool.reshape(-1, size)
            if kind == "MXFP4":
                blocks[:, 0] = 119
            elif kind == "NVFP4":
                blocks[:, :4] = 8  # 1/64
            else:
                scale = np.float16(0.01 / (16 if kind == "Q8_0" else 1))
                blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
            self._pools[kind] = pool
        return self._pools[kind]


def _metadata(m: Mixture) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "context_length": 131072,
        "embedding_length": m.hidden,
        "block_count": m.layers,
        "feed_forward_length": m.ffn,
        "expert_feed_forward_length": m.ffn,
        "attention.head_count": m.heads,
        "attention.head_count_kv": m.kv_heads,
        "attention.key_length": m.head_dim,
        "attention.value_length": m.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": m.head_dim,
        "rope.freq_base": 1e6,
        "vocab_size": m.vocab,
        "expert_count": m.experts,
        "expert_used_count": m.chosen,
    }
    if m.architecture == "gpt-oss":
        facts["attention.sliding_window"] = 128
    found = {f"{m.architecture}.{name}": value for name, value in facts.items()}
    return {"general.architecture": m.architecture, **found}
