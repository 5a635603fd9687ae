"""Latent attention with and without tensor cores: see `bench_cuda.py latent`."""

from __future__ import annotations

from typing import Any

import numpy as np
from cuda_bench.timing import seconds

from kukri.runtime import ops
from kukri.runtime.cuda.compile.kernel import Kernels
from kukri.runtime.cuda.driver.allocator import Memory
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.launch import Launch
from kukri.runtime.cuda.lowering.base import DECODE_ROWS, Capacity, InputAddresses
from kukri.runtime.cuda.lowering.program import Lowering

PAGE = 64
WAYS = ("plain", "tensor cores")
SIZES = ((100, 1), (1000, 1), (8192, 1), (8192, 8), (512, 512), (4096, 512))  # contexts and rows


class Layer:
    """One layer's attention of `rows` rows, the last ones of a context, over random keys in halves."""

    def __init__(
        self, device: Any, kernels: Any, heads: int, context: int, rows: int, dims: int, value_dims: int
    ) -> None:
        q, k = ops.Buffer("q", heads * dims), ops.Buffer("k", dims)
        out = ops.Buffer("out", heads * value_dims)
        self._op = ops.Attend(q, k, k, out, 0, heads, 1, dims, scale=2 * dims**-0.5)
        program = ops.Program((self._op,), (q, k, out), (ops.CacheLayer(1, dims, 0),), out)
        n_pages, memory, rng = -(-context // PAGE), Memory(device), np.random.default_rng(0)
        table = memory.array(rng.permutation(n_pages).astype(np.int32))
        positions = memory.array(np.arange(context - rows, context, dtype=np.int32))
        sequences = memory.array(np.zeros(rows, np.int32))
        inputs = InputAddresses(sequences, sequences, positions, sequences, table, 4 * n_pages)
        capacity = Capacity(n_pages, PAGE, rows, rows, 1, 16)
        self._lowering = Lowering(program, [self._op], capacity, device, kernels, memory, {}, inputs)
        self._device, self.heads, self.context, self.rows = device, heads, context, rows
        keys, _ = self._lowering.cache(0, program.cache_layers[0])
        some = rng.standard_normal(1 << 20, np.float32)
        stored = np.resize(some.astype(np.float16), (n_pages, PAGE, dims))
        asked = np.resize(some[::-1], (rows, q.width))
        device.upload(keys.address, stored)
        device.upload(self._lowering.region(q).address, asked)
        device.wait()

    def launches(self, way: str) -> list[Launch]:
        """In the one of WAYS; none where there is no such."""
        lowering, op = self._lowering, self._op
        lowering._begin(self.rows, self.rows, True, self.rows > DECODE_ROWS)
        if way == "plain":
            lowering._simt_attention(0, op)
        elif lowering._mla_shape(op):
            lowering._attend(0, op)
        return lowering._launches

    def result(self) -> np.ndarray:
        out = np.empty((self.rows, self._op.out.width), np.float32)
        self._device.download(out, self._lowering.region(self._op.out).address)
        self._device.wait()
        return out


def latent(heads: list[int], dims: int = 576, value_dims: int = 512) -> None:
    """µs of a layer's attention, and how far results are apart."""
    device = Device()
    kernels = Kernels(device)
    print(f"{device.name}: latent attention, {dims} dimensions, values of {value_dims}, keys in halves")
    layers = [
        Layer(device, kernels, h, context, rows, dims, value_dims)
        for h in heads or [16, 128]
        for context, rows in SIZES
    ]
    kernels.compile_all(lambda: [layer.launches(way) for layer in layers for way in WAYS])
    for layer in layers:
        times, results = [], []
        for way in WAYS:
            launches = layer.launches(way)
            times.append(seconds(device, 10 * launches, 20 if layer.rows == 1 else 3) / 10 * 1e6)
            results.append(layer.result())
        apart = np.abs(results[1] - results[0]).max() / np.abs(results[0]).max()
        names = ", ".join(dict.fromkeys(launch.name for launch in launches))
        print(
            f"{layer.heads} heads, context {layer.context}, {layer.rows} rows: {times[0]:.1f} us plain, "
            f"{times[1]:.1f} us on tensor cores ({names}), apart by {apart:.1e}"
        )
    device.close()
