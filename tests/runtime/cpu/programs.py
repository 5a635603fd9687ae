"""A small program with all ops of a decoder, and steps of several sequences on a machine."""

from __future__ import annotations

import numpy as np

from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.quant.rounding.encode import encode
from kukri.runtime import ops
from kukri.runtime.engine.cache import Batch, PageTable

VOCAB = 50


def matrix(rng: np.random.Generator, rows: int, width: int, kind: str) -> QTensor:
    values = (rng.normal(size=(rows, width)) / np.sqrt(width)).astype(np.float32)
    if kind == "F32":
        return QTensor("w", FORMATS[kind], values.shape, values.view(np.uint8))
    form = FORMATS[kind]
    if kind == "NVFP4":
        factor = float(np.float32(np.abs(values).max() / 2688))
        return QTensor("w", form, values.shape, encode(values / np.float32(factor), form), (factor,))
    assert form.quantize is not None
    blocks = form.quantize(values.reshape(-1, form.block_size))
    return QTensor("w", form, values.shape, blocks.reshape(rows, -1))


def program(
    seed: int,
    kind: str = "F32",
    head_dim: int = 32,
    heads: int = 6,
    kv_heads: int = 2,
    window: int = 0,
    softcap: float = 0.0,
    interleaved: bool = False,
    activation: str = "silu",
    ffn: int = 96,
) -> ops.Program:
    """Two layers with every op there is: q/k norms, biases, partial RoPE, post-norms, soft-caps."""
    rng = np.random.default_rng(seed)
    hidden = 64
    b = {
        name: ops.Buffer(name, width)
        for name, width in {
            "x": hidden,
            "h": hidden,
            "q": heads * head_dim,
            "k": kv_heads * head_dim,
            "v": kv_heads * head_dim,
            "a": heads * head_dim,
            "gate": ffn,
            "up": ffn,
        }.items()
    }
    last, logits = ops.Buffer("last", hidden, logits_rows=True), ops.Buffer("logits", VOCAB, logits_rows=True)

    def vector(n: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, n).astype(np.float32)

    def linear(x: str, out: str, bias: bool = False, accumulate: bool = False) -> ops.MatMul:
        weight = matrix(rng, b[out].width, b[x].width, kind)
        return ops.MatMul(b[x], b[out], weight, vector(b[out].width) if bias else None, accumulate)

    embedding = matrix(rng, VOCAB, hidden, kind)
    inv_freq = (10000.0 ** -np.linspace(0, 1, head_dim // 4)).astype(np.float32)
    flow: list[ops.Op] = [ops.Embed(b["x"], embedding, scale=3.0)]
    for layer in range(2):
        flow += [
            ops.RMSNorm(b["x"], b["h"], vector(hidden), 1e-3),
            linear("h", "q", bias=True),
            linear("h", "k"),
            linear("h", "v", bias=True),
            ops.RMSNorm(b["q"], b["q"], vector(head_dim), 1e-6, groups=heads),
            ops.RoPE(b["q"], heads, inv_freq, interleaved, 1.1),
            ops.RoPE(b["k"], kv_heads, inv_freq, interleaved, 1.1),
            ops.Attend(
                *(b["q"], b["k"], b["v"], b["a"]),
                layer=layer,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                window=window if layer == 0 else 0,
                softcap=softcap,
            ),
            linear("a", "x", accumulate=True),
            ops.RMSNorm(b["x"], b["h"], vector(hidden), 1e-3),
            linear("h", "gate"),
            linear("h", "up"),
            ops.GatedActivation(b["gate"], b["up"], b["gate"], activation),
            linear("gate", "h"),
            ops.RMSNorm(b["h"], b["h"], vector(hidden), 1e-3),
            ops.Add(b["h"], b["x"]),
        ]
    flow += [
        ops.SelectRows(b["x"], last),
        ops.RMSNorm(last, last, vector(hidden), 1e-3),
        ops.MatMul(last, logits, embedding),
        ops.SoftCap(logits, 5.0),
    ]
    cache = (ops.CacheLayer(kv_heads, head_dim),) * 2
    return ops.Program(tuple(flow), (*b.values(), last, logits), cache, logits)


def batches_of_sequences(rng: np.random.Generator, lengths: list[int]) -> list[list[tuple[int, int]]]:
    """Cut several sequences into chunks of 1-20 tokens and spread them over steps: [(sequence, n), …]."""
    left = dict(enumerate(lengths))
    steps = []
    while any(left.values()):
        step = []
        for sequence, n in left.items():
            if n and (take := min(n, int(rng.integers(0, 21)))):
                step.append((sequence, take))
                left[sequence] -= take
        if step:
            steps.append(step)
    return steps


def run(
    machine, steps, seed: int, page_size: int, want_all: bool = True, logits_indices=None, n_pages: int = 40
) -> list[np.ndarray]:
    """Feed the steps; the logits of each."""
    rng = np.random.default_rng(seed)
    table = PageTable(n_pages, max_sequences=4, page_size=page_size)
    logits = []
    for step in steps:
        sequences = np.concatenate([np.full(n, s, np.int32) for s, n in step])
        positions = np.concatenate(
            [np.arange(table.lengths[s], table.lengths[s] + n, dtype=np.int32) for s, n in step]
        )
        for s, n in step:
            table.extend(s, n)
        tokens = rng.integers(0, VOCAB, len(sequences)).astype(np.int32)
        rows = np.arange(len(sequences), dtype=np.int32)
        if not want_all:
            rows = rows[rng.random(len(rows)) < 0.3]
        if logits_indices is not None:
            rows = np.array(logits_indices, np.int32)
        logits.append(machine.step(Batch(tokens, sequences, positions, rows), table).copy())
    return logits


def agree(got: list[np.ndarray], expected: list[np.ndarray], atol: float) -> None:
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)
