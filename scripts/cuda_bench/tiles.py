"""Ways to share products' work between warps, timed: see `bench_cuda.py sweep` and `wide`."""

from __future__ import annotations

import numpy as np
from cuda_bench.models import SHAPES, random_model
from cuda_bench.right import feed, mean_kl
from cuda_bench.timing import product_bytes, seconds

from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.launch import Launch
from kukri.runtime.cuda.lowering.tuning import (
    BATCH_SPLITS,
    PREFILL_TILES,
    BatchTile,
    DecodeTile,
    PrefillTile,
    Tuning,
)
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.reference.machine import ReferenceMachine


def sweep(shape: str, kind: str, rows: int = 1) -> None:
    machine = CudaMachine(random_model(shape, kind), 8 * rows, max_sequences=rows)
    lowering, device = machine.lowering, machine.device
    found: dict[str, list[tuple[float, DecodeTile]]] = {}
    tried = [DecodeTile(*t) for t in (TILES_OF_ONE if rows <= 4 else TILES_OF_MORE)]

    def ask() -> None:
        for candidate in tried:
            lowering.tuning = _Always(candidate)
            lowering.launches(rows, rows, True)

    lowering.kernels.compile_all(ask)
    for candidate in tried:
        lowering.tuning = _Always(candidate)
        launches = lowering.launches(rows, rows, True)
        for name in {launch.name for launch in launches if launch.name.startswith("decode_matmul")}:
            own = [launch for launch in launches if launch.name == name]
            found.setdefault(name, []).append((seconds(device, own) / len(own), candidate))
    for name, results in found.items():
        print(name)
        for time_, candidate in sorted(results, key=lambda r: r[0])[:6]:
            print(f"   {time_ * 1e6:8.2f} us {product_bytes(name) / time_ / 1e9:6.0f} GB/s  {candidate}")
    machine.close()


def wide(shape: str, kind: str, rows: list[int]) -> None:
    """Each product of one layer of the shape, with each kernel and tile: right, and how fast."""
    rows = rows or [512, 1024, 2048]
    hidden, _, heads, kv_heads, head_dim, ffn, _, _ = SHAPES[shape]
    SHAPES["a layer"] = (hidden, 1, heads, kv_heads, head_dim, ffn, 512, True)
    program, most = random_model("a layer", kind), max(320, *rows)
    ids = np.random.default_rng(0).integers(0, 512, 300)
    expected = feed(ReferenceMachine(program, 5), ids, (300,), 5).astype(float)

    def begin(tile: PrefillTile | None) -> CudaMachine:
        device = Device()
        device.warpgroups = device.warpgroups and tile is not None
        machine = CudaMachine(program, most // 64, max_rows=most, device=device)
        machine.lowering.tuning = _Always(tile) if tile else Tuning()
        return machine

    def compile_for(machine: CudaMachine) -> None:
        for tile in PREFILL_TILES:
            machine.lowering.tuning = _Always(tile)
            machine.lowering.launches(300, 300, True, True)

    machine = begin(PREFILL_TILES[0])
    tried = [None, *PREFILL_TILES] if machine.device.warpgroups else [None]
    machine.lowering.kernels.compile_all(lambda: compile_for(machine))
    machine.close()
    found: dict[tuple[str, int], list[str]] = {}
    for tile in tried:
        machine = begin(tile)
        got, again = feed(machine, ids, (300,), 5), feed(machine, ids, (300,), 5)
        name = f"{tile.M} x {tile.ROWS}, {tile.resident}" if tile else "sm80"
        print(f"{name}: kl {mean_kl(expected, got.astype(float)):.1e}, same twice: {(got == again).all()}")
        for n in rows:
            launches = machine.lowering.launches(n, 0, False, True)
            for label in dict.fromkeys(a.name for a in launches if a.name.startswith("prefill_matmul")):
                own = [launch for launch in launches if launch.name == label] * 8
                time_ = seconds(machine.device, own, 5) / len(own)
                operations = 2 * n * np.prod([float(size) for size in label.split()[-1].split("x")])
                text = f"{name}: {time_ * 1e6:.1f} us {operations / time_ / 1e12:.0f}"
                found.setdefault((label.split()[-1], n), []).append(text)
        machine.close()
    for (label, n), texts in found.items():
        print(f"{label} {n} rows, TFLOP/s: " + "; ".join(texts))


def batch_tiles(shape: str, kind: str, rows: list[int], layers: int = 16) -> None:
    """The fastest tiles of `batch_sm90.py` for each product of a step of so many sequences."""
    most = max(rows or [64])
    machine = CudaMachine(random_model(shape, kind, layers), most, max_sequences=most)
    lowering, device = machine.lowering, machine.device
    for n in rows or [64]:
        tried = [tile for tile in _batch_tiles(n) if tile.fits(kind)]

        def launches(tile: BatchTile, n: int = n) -> list[Launch]:
            lowering.tuning = _AlwaysBatch(tile)
            return [a for a in lowering.launches(n, n, True) if a.name.startswith("batch_matmul")]

        def ask(tiles: list[BatchTile] = tried) -> list[list[Launch]]:
            return [launches(tile) for tile in tiles]

        lowering.kernels.compile_all(ask)
        found: dict[str, list[tuple[float, BatchTile]]] = {}
        for tile in tried:
            own = launches(tile)
            for name in {launch.name for launch in own}:
                named = [launch for launch in own if launch.name == name]
                found.setdefault(name, []).append((seconds(device, named, 5) / len(named), tile))
        for name, results in found.items():
            print(f"{n} rows, {name}")
            for time_, tile in sorted(results, key=lambda r: r[0])[:8]:
                print(f"   {time_ * 1e6:8.2f} us {product_bytes(name) / time_ / 1e9:6.0f} GB/s  {tile}")
    machine.close()


def _batch_tiles(n: int) -> list[BatchTile]:
    """Tiles for n rows: all numbers of warpgroups and splits, with the blocks and stages that fit."""
    rows = next(size for size in (16, 32, 64, 128) if n <= size)
    blocks = [(groups, stages, min(3, 4 // groups)) for groups in (1, 2, 4) for stages in (3, 4, 6)]
    return [BatchTile(rows, *block[:2], splits, block[2]) for block in blocks for splits in BATCH_SPLITS]


class _AlwaysBatch(Tuning):
    """The same tile for every product of many rows that it suits."""

    def __init__(self, tile: BatchTile) -> None:
        self._tile = tile

    def batch(
        self, name: str, rows: int, n_out: int, blocks: int, matrices: int, multiprocessors: int
    ) -> BatchTile | None:
        fits = self._tile.splits <= -(-blocks // 4)
        return self._tile if fits else super().batch(name, rows, n_out, blocks, matrices, multiprocessors)


TILES_OF_ONE = [
    (1, 4, 4), (1, 8, 8), (1, 16, 16), (1, 4, 8), (1, 16, 32), (2, 2, 4), (2, 4, 4), (2, 8, 8), (2, 16, 16),
    (2, 2, 8), (2, 4, 8), (2, 8, 16), (4, 2, 4), (4, 4, 4), (4, 8, 8),
]  # fmt: skip
TILES_OF_MORE = [
    (1, 8, 8), (1, 16, 16), (1, 4, 4), (2, 4, 4), (2, 8, 8), (2, 16, 16), (2, 4, 4, 4), (2, 8, 8, 2),
    (2, 4, 8, 2), (4, 4, 4), (4, 4, 4, 2), (4, 8, 8), (4, 4, 8), (2, 2, 4),
]  # fmt: skip


class _Always(Tuning):
    """The same tile for every product that it suits: with 32 outputs a block where the result is
    quantised.
    """

    def __init__(self, tile: DecodeTile | PrefillTile) -> None:
        self._tile = tile

    def decode(
        self, name: str, blocks: int, n_out: int, matrices: int, emits: bool, tokens: int
    ) -> DecodeTile:
        assert isinstance(self._tile, DecodeTile)
        fits = self._tile.M % matrices == 0 and (self._tile.outputs(matrices) % 32 == 0 or not emits)
        return self._tile if fits else super().decode(name, blocks, n_out, matrices, emits, tokens)

    def prefill(self, rows: int, n_out: int, multiprocessors: int) -> PrefillTile:
        assert isinstance(self._tile, PrefillTile)
        return self._tile
