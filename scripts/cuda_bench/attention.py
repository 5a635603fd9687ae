"""Attention of a single row at several depths: see `bench_cuda.py attention`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cuda_bench.timing import seconds

from kukri.runtime.cuda.driver.launch import Launch
from kukri.runtime.cuda.lowering.tuning import Tuning
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.ops import Program

LAYERS = 4  # so that the caches of deep contexts do not fit into the L2 cache
DEPTHS = (1, 130, 260, 500, 1000, 2000, 8192)
TOGETHER = 64  # launches in a graph, at least


@dataclass(frozen=True)
class Variant(Tuning):
    """`Tuning` with other blocks of attention."""

    alone: int = Tuning.alone
    heads: int = Tuning.heads
    block: tuple[int, int] | None = None  # warps, and tiles that each has room for

    def split_kv(self, rows: int, dims: int, shared_limit: int) -> tuple[int, int]:
        return self.block or super().split_kv(rows, dims, shared_limit)


VARIANTS = {
    "as it is": Variant(),
    "split at once": Variant(alone=0),
    "2 alone": Variant(alone=2),
    "8 alone": Variant(alone=8),
    "8 warps, 2 tiles": Variant(block=(8, 2)),
    "2 heads": Variant(heads=2),
    "8 heads": Variant(heads=8),
    "4 warps, 3 tiles": Variant(block=(4, 3), alone=2 * Tuning.alone),
}


def attention(program: Program, depths: list[int]) -> None:
    """µs of a launch of attention of a step of one row, by the tokens that the row sees and by variants."""
    depths = depths or list(DEPTHS)
    n_pages = max(depths) // 64 + 1
    machine = CudaMachine(program, n_pages, background=False)
    machine._kernels.compile_all(lambda: [launches(machine, each) for each in VARIANTS.values()])
    planned = {name: launches(machine, each) for name, each in VARIANTS.items()}
    machine.device.wait()
    print(f"{machine.device.name}: µs of a launch, by tokens")
    print(f"{'':18}" + "".join(f"{depth:8}" for depth in depths))
    times: dict[str, list[float]] = {name: [] for name in planned}
    for depth in depths:
        table = PageTable(n_pages)
        table.extend(0, depth)
        machine.step(Batch(*(np.array([v], np.int32) for v in (1, 0, depth - 1, 0))), table)
        for name, own in planned.items():
            many = own * -(-TOGETHER // len(own))
            times[name].append(seconds(machine.device, many) / len(many) * 1e6)
    for name, row in times.items():
        print(f"{name:18}" + "".join(f"{each:8.2f}" for each in row))
    for single in {each.name: each for each in machine.plan(1, 1)}.values():
        if single.name in ("rope_angles", "embed", "quantize"):
            time = seconds(machine.device, [single] * TOGETHER) / TOGETHER * 1e6
            print(f"{single.name}, {single.grid[0]} blocks: {time:.2f} us")
    machine.close()


def launches(machine: CudaMachine, tuning: Tuning) -> list[Launch]:
    """The launches of attention in a step of one row."""
    before, machine.lowering.tuning = machine.lowering.tuning, tuning
    try:
        return [each for each in machine.lowering.launches(1, 1, True) if each.name == "decode_attention"]
    finally:
        machine.lowering.tuning = before
