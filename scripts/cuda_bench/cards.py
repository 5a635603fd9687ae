"""Several cards that share a model, beside one: see `bench_cuda.py cards`."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np
from cuda_bench.models import random_model

from kukri.runtime.cuda.chain import CudaChain
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.errors import CudaOutOfMemory
from kukri.runtime.cuda.lowering.cards import CardGroup
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.cuda.team import CudaTeam
from kukri.runtime.engine.cache import NO_LOGITS, Batch, PageTable
from kukri.runtime.engine.machine import Machine
from kukri.runtime.engine.split import balanced_cuts, cuts, layer_bytes, split_at
from kukri.runtime.engine.tensor_split import tensor_parts
from kukri.runtime.ops import Program

PAGES, PROMPT, TOKENS, WARM_UP = 48, 2048, 64, 8
LAYERS_ROWS, ROWS = 256, 1024  # of a step


def cards(shape: str, kind: str, n: int = 2) -> None:
    """Prefill and decode on one card, on `n` by layers and by tensors, and how far their logits are apart."""
    program, expected = random_model(shape, kind), None
    for name, machine, rows in machines(program, n):
        ids = (np.arange(PROMPT) * 7919 % program.n_tokens).astype(np.int32)
        prefill = min(prefilled(machine, ids, rows)[0] for _ in range(3))
        logits = prefilled(machine, ids, rows)[1]
        again = prefilled(machine, ids, rows)[1]
        decode = decoded(machine)
        expected = logits if expected is None else expected
        apart = np.abs(logits - expected).max() / np.abs(expected).max()
        same = "the same" if (logits == again).all() else "OTHERS"
        print(
            f"{name:12} prefill {PROMPT / prefill:8.0f}, decode {1 / decode:6.1f} tokens/s; "
            f"logits {apart:.1e} from the first line's, {same} the second time",
            flush=True,
        )
        machine.close()


def machines(program: Program, n: int) -> Iterator[tuple[str, CudaMachine | CudaChain | CudaTeam, int]]:
    """The machines, each to be closed before the next one is made, and the rows of their prefill steps."""

    def made(part: Program, device: Device, group: CardGroup | None = None, rows: int = ROWS) -> CudaMachine:
        device.use()
        return CudaMachine(part, PAGES, max_rows=rows, device=device, group=group, background=False)

    try:
        yield "one card", made(program, Device()), ROWS
    except CudaOutOfMemory as problem:
        print(f"one card: {problem}")
    parts = split_at(program, balanced_cuts(layer_bytes(program), cuts(program), n))
    devices = [Device(index=i) for i in range(len(parts))]
    chain = [made(part, device, rows=LAYERS_ROWS) for part, device in zip(parts, devices, strict=True)]
    yield "layers", CudaChain(chain), LAYERS_ROWS
    devices = [Device(index=i) for i in range(n)]
    assert all(a.reaches(b) for a in devices for b in devices)
    yield "tensors", CudaTeam(program, tensor_parts(program, n), devices, made), ROWS


def prefilled(machine: Machine, ids: np.ndarray, rows: int) -> tuple[float, np.ndarray]:
    """Seconds for a prompt in steps of `rows`, and the logits of its last token."""
    table = PageTable(PAGES)
    table.extend(0, len(ids))
    start = perf_counter()
    for at in range(0, len(ids), rows):
        positions = np.arange(at, min(at + rows, len(ids)), dtype=np.int32)
        ends = at + rows >= len(ids)
        wanted = np.array([len(positions) - 1], np.int32) if ends else NO_LOGITS
        logits = machine.step(Batch(ids[positions], positions * 0, positions, wanted), table)
    return perf_counter() - start, logits.copy()


def decoded(machine: Machine) -> float:
    """Seconds a token, greedy: the median, since a card that had nothing to do begins slowly."""
    table, token, times = PageTable(PAGES), 1, []
    table.extend(0, WARM_UP + TOKENS)
    for i in range(WARM_UP + TOKENS):
        row = np.array([i], np.int32)
        start = perf_counter()
        batch = Batch(np.array([token], np.int32), row * 0, row, row * 0)
        (top,) = machine.top_k(batch, table, 1, machine.program.logits.width)
        token = int(top.ids[0])
        times.append(perf_counter() - start)
    return float(np.median(times[WARM_UP:]))
