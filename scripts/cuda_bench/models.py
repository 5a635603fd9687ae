"""What bench_cuda.py runs: random blocks in the shape of a published model, and the conformance fixtures."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from kukri.quant.block import BlockFormat, QTensor
from kukri.quant.checkpoint.folder import Checkpoint
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.gathered import GatheredTensor
from kukri.quant.gguf.reader import GGUFFile
from kukri.quant.gguf.writer import TensorRecord, write_gguf
from kukri.quant.recipes.recipes import ModelShape, find_recipe, plan
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.ops import Program
from kukri.runtime.program.build import build_program
from kukri.runtime.weights.binding import Weights

DATA = Path(
    os.environ.get("KUKRI_FIXTURES") or Path(__file__).resolve().parents[2] / "tests/data/conformance"
)
# hidden, layers, heads, kv_heads, head_dim, ffn, vocab, tied
SHAPES = {
    "smollm2-135m": (576, 30, 9, 3, 64, 1536, 49152, True),
    "llama-3.2-1b": (2048, 16, 32, 8, 64, 8192, 128256, True),
    "llama-3.1-8b": (4096, 32, 32, 8, 128, 14336, 128256, False),
    "llama-3.1-70b": (8192, 80, 64, 8, 128, 28672, 128256, False),
}
# Where the blocks of a format have their float16 scales, if not only in the first two bytes
SCALES: dict[str, tuple[int, ...]] = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q2_K": (80, 82),
}
SCALES |= {"Q6_K": (208,), "Q3_K": (108,)}


def random_model(shape: str, kind: str, layers: int = 0) -> Program:
    """A program whose weights are random blocks, of so many layers if it is not 0."""
    metadata, tensors = random_tensors(shape, kind, layers)
    config = config_from_gguf(metadata, tensors)
    return build_program(config, Weights(config, tensors))


def write_model(path: Path, shape: str, kind: str) -> None:
    """The same as a GGUF file that llama.cpp opens, too."""
    metadata, tensors = random_tensors(shape, kind)
    vocab = metadata["llama.vocab_size"]
    metadata |= {
        "general.name": f"{shape} {kind}, random",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": [*"abcdefghijklmnopqrstuvwxyz", *(f"t{i}" for i in range(vocab - 26))],
        "tokenizer.ggml.token_type": np.ones(vocab, np.int32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    records = [TensorRecord(t.name, t.shape, t.format) for t in tensors.values()]
    write_gguf(path, metadata, {}, records, ([t.data] for t in tensors.values()))


def random_tensors(shape: str, kind: str, layers: int = 0) -> tuple[dict[str, Any], dict[str, QTensor]]:
    """Metadata, and random blocks of each format, cut out of one pool.

    `kind` is the format of all matrices, or a recipe that mixes formats, such as Q4_K_M.
    """
    hidden, all_layers, heads, kv_heads, head_dim, ffn, vocab, tied = SHAPES[shape]
    layers = layers or all_layers
    matrices = {"token_embd.weight": (vocab, hidden)}
    for i in range(layers):
        matrices |= {
            f"blk.{i}.attn_q.weight": (heads * head_dim, hidden),
            f"blk.{i}.attn_k.weight": (kv_heads * head_dim, hidden),
            f"blk.{i}.attn_v.weight": (kv_heads * head_dim, hidden),
            f"blk.{i}.attn_output.weight": (hidden, heads * head_dim),
            f"blk.{i}.ffn_gate.weight": (ffn, hidden),
            f"blk.{i}.ffn_up.weight": (ffn, hidden),
            f"blk.{i}.ffn_down.weight": (hidden, ffn),
        }
    if not tied:
        matrices["output.weight"] = (vocab, hidden)
    norms = [f"blk.{i}.{part}_norm.weight" for i in range(layers) for part in ("attn", "ffn")]
    ones = np.ones(hidden, np.float32).view(np.uint8).reshape(1, -1)
    tensors = {
        name: QTensor(name, FORMATS["F32"], (hidden,), ones) for name in (*norms, "output_norm.weight")
    }
    pools: dict[str, np.ndarray] = {}
    for name, form in formats_of(matrices, kind, ModelShape("llama", layers, heads // kv_heads)).items():
        if form.name not in pools:
            pools[form.name] = random_blocks(form.name, max(map(math.prod, matrices.values())))
        pool = pools[form.name]
        rows, width = matrices[name]
        size = rows * form.row_bytes(width)
        data = np.resize(pool, size) if size > len(pool) else pool[:size]
        tensors[name] = QTensor(name, form, (rows, width), data.reshape(rows, -1))
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.context_length": 131072,
        "llama.embedding_length": hidden,
        "llama.block_count": layers,
        "llama.feed_forward_length": ffn,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": 500000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": vocab,
    }
    return metadata, tensors


def formats_of(matrices: dict[str, tuple[int, int]], kind: str, model: ModelShape) -> dict[str, BlockFormat]:
    """The format of each matrix: that called `kind`, or what the recipe of that name chooses."""
    if kind in FORMATS:
        return dict.fromkeys(matrices, FORMATS[kind])
    recipe = find_recipe(kind)
    assert recipe, f"{kind} is neither a format nor a recipe"
    unread = [
        GatheredTensor(name, shape, (QTensor(name, FORMATS["F32"], shape, np.empty((0, 0), np.uint8)),))
        for name, shape in matrices.items()
    ]
    return {planned.name: planned.format for planned in plan(recipe, unread, model)}


def random_blocks(name: str, n_weights: int) -> np.ndarray:
    """Random blocks of a format, with small scales: for so many weights, but at most 256 MB."""
    size = FORMATS[name].type_size
    n_blocks = min(-(-n_weights // FORMATS[name].block_size), (1 << 28) // size)
    pool = np.random.default_rng(0).integers(0, 256, n_blocks * size, dtype=np.uint8)
    blocks = pool.reshape(-1, size)
    scale = np.float16(0.01 / {"Q8_0": 16, "IQ4_NL": 16, "IQ4_XS": 512, "Q6_K": 256}.get(name, 1))
    if name == "MXFP4":
        blocks[:, 0] = 119
    if name == "NVFP4":
        blocks[:, :4] = 8  # 1/64
    for at in () if name in ("MXFP4", "NVFP4") else SCALES.get(name, (0,)):
        blocks[:, at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    return pool


def load_fixture(folder: Path, file: str) -> Program:
    model: GGUFFile | Checkpoint
    if file.endswith(".gguf"):
        model = GGUFFile.open(folder / file)
        config = config_from_gguf(model.metadata, model.tensors)
    else:
        model = Checkpoint.open(folder)
        config = config_from_hf(json.loads((folder / file).read_text()), model.tensors)
    return build_program(config, Weights(config, model.tensors))
