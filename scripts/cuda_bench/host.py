"""What the host does in a decode step on the card: see `bench_cuda.py host`."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import cast

import numpy as np
from cuda_bench.models import random_model

from kukri.runtime.config.model_config import ModelConfig
from kukri.runtime.cuda import step_outputs
from kukri.runtime.cuda.driver.device import BLOCK, SCHEDULE_AUTO, SPIN, Device
from kukri.runtime.cuda.driver.launch import Graph
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.cuda.step import StepShape, TopKRequest
from kukri.runtime.cuda.top_k import size_for
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.sampling.sampler import Sampler

# How to wait for the GPU, and machine.MAPPED_LOGITS.
VARIANTS = {
    "spin": (SPIN, 1 << 20),
    "auto": (SCHEDULE_AUTO, 1 << 20),
    "block": (BLOCK, 1 << 20),
    "logits copied": (SPIN, 0),
}
STEPS, WARM_UP = 200, 10
CASES = {
    "step": None,
    "greedy": SamplingParams(temperature=0, ignore_eos=True),
    "top-k 40": SamplingParams(seed=0, ignore_eos=True),
    "penalty": SamplingParams(seed=0, ignore_eos=True, repeat_penalty=1.1),
}


class TimedDevice(Device):
    """Notes when it is asked to run a graph and to wait, and when that is done."""

    def __init__(self, waiting: int) -> None:
        super().__init__(waiting)
        self.marks: list[float] = []

    def run(self, graph: Graph) -> None:
        self.marks.append(perf_counter())
        super().run(graph)
        self.marks.append(perf_counter())

    def wait(self) -> None:
        self.marks.append(perf_counter())
        super().wait()
        self.marks.append(perf_counter())


class Vocabulary:
    """As much of a ModelConfig as an engine asks for."""

    def __init__(self, size: int) -> None:
        self.vocab_size = size


def host(shape: str, kind: str, variants: list[str]) -> None:
    """Of steps of one row: the wall clock's time, the graph's, and what the host does before its launch, in
    it, while the card works, and after that, in µs. Medians.

    The graph's time is that of one alone, between two events, and that of each of ten in a row: the
    difference is what a launch takes until the card begins, or copies that others hide.
    """
    program = random_model(shape, kind)
    print(f"{'':23}   wall  graph  in a row  host's part |  before  launch    wait   after | engine")
    for variant in variants or VARIANTS:
        waiting, step_outputs.MAPPED_LOGITS = VARIANTS[variant]
        device = TimedDevice(waiting)
        machine = CudaMachine(program, 8, device=device, background=False)
        for name, params in CASES.items():
            parts = step_parts(machine, device, params)
            k = Sampler(params).top_k_needed(machine.program.logits.width, 64 + WARM_UP) if params else 0
            request = TopKRequest(size_for(k), machine.program.logits.width) if params else None
            graph = machine._graphs[StepShape(1, 1, True, False), request]
            alone, many = graph_us(device, graph, 1), graph_us(device, graph, 10)
            wall = sum(parts)
            numbers = f"{wall:6.1f} {alone:6.1f}    {many:6.1f}       {wall - alone:6.1f} | "
            numbers += " ".join(f"{part:7.1f}" for part in parts)
            engine = f"{engine_us(machine, params):6.1f}" if params else ""
            print(f"{name + ', ' + variant:23} {numbers} | {engine}")
        machine.close()


def step_parts(machine: CudaMachine, device: TimedDevice, params: SamplingParams | None) -> list[float]:
    """µs before a step's launch, in it, of waiting, and after that with the sampler; with `params` None all
    logits come back and nobody looks at them."""
    vocab = machine.program.logits.width
    table, history = PageTable(8), [1]
    sampler = Sampler(params) if params else None
    rows = []
    for i in range(WARM_UP + STEPS):
        table.extend(0, 1)
        batch = Batch(*(np.array([v], np.int32) for v in (history[-1], 0, i, 0)))
        device.marks.clear()
        start = perf_counter()
        if sampler is None:
            machine.step(batch, table)
        else:
            k = sampler.top_k_needed(vocab, 64 + WARM_UP)
            (found,) = machine.top_k(batch, table, k, vocab)
            history.append(sampler.sample(found, history))
        end = perf_counter()
        launch, launched, _, waited = device.marks[-4:]
        rows.append((launch - start, launched - launch, waited - launched, end - waited))
    return [1e6 * float(part) for part in np.median(rows[WARM_UP:], axis=0)]


def graph_us(device: Device, graph: Graph, n: int) -> float:
    """µs that each of `n` runs of a graph in a row takes."""

    def once() -> float:
        start, end = device.event(), device.event()
        start.record()
        for _ in range(n):
            device.run(graph)
        end.record()
        return end.seconds_since(start)

    return median_us(once, n)


def engine_us(machine: CudaMachine, params: SamplingParams) -> float:
    """µs a token of an engine."""
    vocabulary = cast(ModelConfig, Vocabulary(machine.program.logits.width))
    engine = Engine(machine, PageTable(8), vocabulary)
    tokens = engine.generate([1, 2, 3], params)
    for _ in range(WARM_UP):
        next(tokens)

    def once() -> float:
        start = perf_counter()
        next(tokens)
        return perf_counter() - start

    return median_us(once, 1, STEPS)


def median_us(once: Callable[[], float], n: int, repeats: int = 20) -> float:
    return 1e6 * float(np.median([once() / n for _ in range(repeats)]))
