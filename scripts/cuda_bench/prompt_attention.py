"""Attention of the rows of a prompt: see `bench_cuda.py prompt-attention`."""

from __future__ import annotations

from typing import Any

import numpy as np
from cuda_bench.models import SHAPES
from cuda_bench.timing import seconds

from kukri.runtime import ops
from kukri.runtime.cuda.compile.kernel import Kernels
from kukri.runtime.cuda.driver.allocator import Memory
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.launch import Launch
from kukri.runtime.cuda.lowering.base import Capacity, InputAddresses
from kukri.runtime.cuda.lowering.program import Lowering
from kukri.runtime.cuda.lowering.tuning import Tuning
from kukri.runtime.cuda.pages import CACHE_BITS
from kukri.runtime.engine.cache import PAGE_SIZE

Q_SCALE = 4.0  # of random queries: scores with a deviation of 4, as peaked as those of models


class MmaTuning(Tuning):
    """Prompts without wgmma."""

    wide_attention = False


class TogetherTuning(Tuning):
    """With wgmma, and warpgroups that start their products together."""

    attention_turns = False


WAYS = {"mma": MmaTuning(), "wgmma together": TogetherTuning(), "wgmma in turn": Tuning()}


class PromptLayer:
    """One layer's attention of `rows` rows behind `depth` ones, over random keys and values."""

    def __init__(self, device: Any, kernels: Any, shape: str, cache: str, depth: int, rows: int) -> None:
        _, _, heads, kv_heads, dims, _, _, _ = SHAPES[shape]
        self.depth, self.rows, self.heads, self.dims, context = depth, rows, heads, dims, depth + rows
        q, k, v = (ops.Buffer(n, w * dims) for n, w in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        out = ops.Buffer("out", heads * dims)
        self._op = ops.Attend(q, k, v, out, 0, heads, kv_heads, dims, scale=dims**-0.5)
        program = ops.Program((self._op,), (q, k, v, out), (ops.CacheLayer(kv_heads, dims, dims),), out)
        n_pages, rng = -(-context // PAGE_SIZE), np.random.default_rng(0)
        self._memory = memory = Memory(device)
        table = memory.array(rng.permutation(n_pages).astype(np.int32))
        positions = memory.array(np.arange(depth, context, dtype=np.int32))
        sequences = memory.array(np.zeros(rows, np.int32))
        inputs = InputAddresses(sequences, sequences, positions, sequences, table, 4 * n_pages)
        bits = CACHE_BITS[cache]
        capacity = Capacity(n_pages, PAGE_SIZE, rows, rows, 1, bits)
        self._lowering = Lowering(program, [self._op], capacity, device, kernels, memory, {}, inputs)
        self._device = device
        for region in self._lowering.cache(0, program.cache_layers[0]):
            parts = random_parts(rng, bits, dims)
            device.upload(region.address, np.resize(parts, (n_pages * kv_heads, parts.shape[1])))
            device.wait()
        asked = Q_SCALE * rng.standard_normal((rows, q.width), np.float32)
        device.upload(self._lowering.region(q).address, asked)
        device.wait()

    def launches(self, way: str) -> list[Launch]:
        """In the one of WAYS."""
        lowering = self._lowering
        lowering.tuning = WAYS[way]
        lowering._begin(self.rows, self.rows, True, True)
        lowering._attend(0, self._op)
        return lowering._launches

    def result(self) -> np.ndarray:
        out = np.empty((self.rows, self._op.out.width), np.float32)
        self._device.download(out, self._lowering.region(self._op.out).address)
        self._device.wait()
        return out

    @property
    def operations(self) -> float:
        """Of the products of queries with keys and of probabilities with values."""
        return 4.0 * self.heads * self.dims * self.rows * (self.depth + (self.rows + 1) / 2)


def random_parts(rng: np.random.Generator, bits: int, dims: int) -> np.ndarray:
    """Some heads' parts of pages, in bytes [parts, bytes]: see `kernels/attention/cache.py`."""
    n = 300
    if bits == 16:
        return rng.standard_normal((n, PAGE_SIZE * dims), np.float32).astype(np.float16).view(np.uint8)
    codes = rng.integers(0, 256, (n, PAGE_SIZE * dims * bits // 8), np.uint8)
    scales = np.full((n, PAGE_SIZE * dims // 32), 1.0 / (74 if bits == 8 else 4.6), np.float16)
    return np.concatenate([codes, scales.view(np.uint8)], 1)


def prompt_attention(shape: str, cache: str, depths: list[int], rows: int = 2048) -> None:
    """µs and TFLOP/s of a layer's attention with and without wgmma, and how far results are apart."""
    device = Device()
    kernels = Kernels(device)
    print(f"{device.name}: attention of {rows} rows of a prompt in the shape of {shape}, cache in {cache}")
    layer = PromptLayer(device, kernels, shape, cache, 0, rows)
    kernels.compile_all(lambda: [layer.launches(way) for way in WAYS])
    for depth in depths or [0, 2048, 8192, 30720]:
        layer = PromptLayer(device, kernels, shape, cache, depth, rows)
        texts, results = [], []
        for way in WAYS:
            launches = layer.launches(way)
            time_ = seconds(device, 4 * launches, 5) / 4
            results.append(layer.result())
            again = seconds(device, launches, 1) and layer.result()
            same = "" if np.array_equal(results[-1], again) else ", NOT the same twice"
            texts.append(f"{way} {time_ * 1e6:.1f} us {layer.operations / time_ / 1e12:.0f} TFLOP/s{same}")
        apart = max(np.abs(result - results[0]).max() for result in results)
        print(f"depth {depth}: {'; '.join(texts)}; apart by {apart:.1e} of {np.abs(results[0]).max():.2f}")
    device.close()
