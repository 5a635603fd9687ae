"""A mixture on the card whose experts the CPU computes: see `bench_cuda.py cpu-moe`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import numpy as np
from cuda_bench.mixtures import random_mixture

from kukri.runtime.cpu.bandwidth import ReadBandwidth
from kukri.runtime.cpu.experts import IDLE_SECONDS, CpuExperts
from kukri.runtime.cpu.team import Team
from kukri.runtime.cuda.compile.kernel import Ask, Kernels
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.hosted import LAST_NUMBER, HostedCudaMachine
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.cuda.step import StepShape
from kukri.runtime.engine.cache import NO_LOGITS, Batch, PageTable
from kukri.runtime.ops import MoE, Program

PAGES, PROMPT, TOKENS, WARM_UP, CHECKED_LAYERS = 64, 2048, 64, 8, 2
FAR = (1 << 31) - 1  # no exchange has this number
FORCED = (1, 2, 4, 1, 8, 1)  # rows of the steps that are compared


class NeededKernels(Kernels):
    """Compiles a kernel when it is needed, and not in the background while something is measured."""

    def compile_in_order(self, capacity: str, first: Ask, alike: Sequence[Ask], later: Sequence[Ask]) -> None:
        self.compile_all(first)


def cpu_moe(shape: str, kind: str, layers: int = 0, rows: int = 512) -> None:
    check(random_mixture(shape, kind, CHECKED_LAYERS))
    start = perf_counter()
    program = random_mixture(shape, kind, layers)
    made = perf_counter()
    machine = hosted(program, rows)
    assert isinstance(machine.host, CpuExperts)
    n_threads, n_layers = machine.host.n_threads, len(mixtures_of(program))
    where = f"{n_layers} layers on {n_threads} threads and the {machine.device.name}"
    print(f"{where}: made {made - start:.1f} s, loaded {perf_counter() - made:.1f} s", flush=True)
    for threads in (n_threads, n_threads - 1, n_threads - 2, n_threads - 4, n_threads):
        if threads > 0:
            take_threads(machine.host, threads)
            decode(machine, program, 1, threads)
    for n in (2, 4, 8):
        decode(machine, program, n, n_threads)
    for n in sorted({512, rows}):
        prompts(machine, program, min(n, rows))
    machine.close()
    with ReadBandwidth(n_threads) as reading:
        print(f"{n_threads} threads read {reading.measure() / 1e9:.0f} GB/s", flush=True)


def check(program: Program) -> None:
    """Logits of a prompt and of steps of few rows, against those of experts on the card; twice."""
    ids = (np.arange(64 + sum(FORCED)) * 7919 % program.n_tokens).astype(np.int32)
    device = Device()
    on_card = CudaMachine(program, PAGES, max_rows=64, device=device, kernels=NeededKernels(device))
    expected = forced(on_card, ids)
    on_card.close()
    machine = hosted(program, 64)
    got, again = forced(machine, ids), forced(machine, ids)
    machine.close()
    apart = np.abs(got - expected).max() / np.abs(expected).max()
    same = "the same" if (got == again).all() else "OTHERS"
    best = (got.argmax(1) == expected.argmax(1)).mean()
    print(
        f"{len(mixtures_of(program))} layers: logits {apart:.1e} from those of experts on the card, "
        f"{best:.0%} of the likeliest the same, {same} the second time",
        flush=True,
    )


def forced(machine: CudaMachine, ids: np.ndarray) -> np.ndarray:
    table, at, logits = PageTable(PAGES), 0, []
    for n in (64, *FORCED):
        table.extend(0, n)
        rows = np.arange(n, dtype=np.int32)
        wanted = rows[-1:] if n > max(FORCED) else rows
        logits.append(machine.step(Batch(ids[at : at + n], rows * 0, rows + at, wanted), table).copy())
        at += n
    return np.concatenate(logits)


def mixtures_of(program: Program) -> list[MoE]:
    return [op for op in program.ops if isinstance(op, MoE)]


def hosted(program: Program, rows: int) -> HostedCudaMachine:
    device = Device()
    host = CpuExperts(mixtures_of(program), rows, allocate=device.pinned)
    kernels = NeededKernels(device)
    return HostedCudaMachine(
        program, PAGES, host, max_rows=rows, device=device, max_sequences=8, kernels=kernels
    )


def take_threads(host: CpuExperts, n: int) -> None:
    """Let a team of so many threads, at most those that the host was made for, compute."""
    team = Team(n, IDLE_SECONDS)
    for machine in host._machines.values():
        machine.team = team
        machine._step["n_threads"] = n


def decode(machine: HostedCudaMachine, program: Program, n: int, n_threads: int) -> None:
    """Steps of one row of `n` sequences each; then the card's part and that of the experts by themselves."""
    table = PageTable(PAGES, n)
    for sequence in range(n):
        table.extend(sequence, WARM_UP + TOKENS)
    rows, times = np.arange(n, dtype=np.int32), []
    ids = np.arange(n, dtype=np.int32) * 7919 % program.n_tokens
    for i in range(WARM_UP + TOKENS):
        start = perf_counter()
        found = machine.top_k(Batch(ids, rows, rows * 0 + i, rows), table, 1, program.logits.width)
        ids = np.array([int(top.ids[0]) for top in found], np.int32)
        times.append(perf_counter() - start)
    wall, card, experts = median(times[WARM_UP:]), card_alone(machine, n), experts_alone(machine, program, n)
    read, rest = expert_bytes(program, machine, n), (wall - card - experts) / len(machine.hosted)
    least, most = min(times[WARM_UP:]), max(times[WARM_UP:])
    print(
        f"{n} sequences, {n_threads} threads: {n / wall:.1f} tokens/s, {wall * 1e3:.3f} ms a step "
        f"({least * 1e3:.3f} to {most * 1e3:.3f}): the card alone {card * 1e3:.3f}, "
        f"experts alone {experts * 1e3:.3f} ({read / experts / 1e9:.0f} GB/s), "
        f"the rest {rest * 1e6:.1f} us a layer",
        flush=True,
    )


def card_alone(machine: HostedCudaMachine, n: int) -> float:
    """Seconds of the card's part of a step, whose launches find all answers there."""
    shape, graphs = StepShape(n, n, True, False), machine._graphs
    graph = next(graphs[key] for key in reversed(graphs) if key[0] == shape)
    machine.host.let_go(FAR)
    times = []
    for _ in range(20):
        start = perf_counter()
        machine.device.run(graph)
        machine.device.wait()
        times.append(perf_counter() - start)
    machine._next = LAST_NUMBER + 1
    return median(times)


def experts_alone(machine: HostedCudaMachine, program: Program, n: int) -> float:
    """Seconds of the CPU's part of a step, whose threads find all questions there; in all layers the rows and
    choices are those of the last."""
    host, times = machine.host, []
    assert isinstance(host, CpuExperts)
    host.asked[0] = FAR
    for i in range(20):
        start = perf_counter()
        host.exchange(1 + i, n, n)
        times.append(perf_counter() - start)
    host.asked[0] = 0
    return median(times)


def expert_bytes(program: Program, machine: HostedCudaMachine, n: int) -> float:
    """Bytes of the experts that the last layer's rows have chosen, in all layers."""
    total = 0.0
    for op in mixtures_of(program):
        chosen = len(np.unique(machine.host.rows(op)[1][:n]))
        total += chosen * sum(each[0].n_bytes for each in (op.gate, op.up, op.down))
    return total


def prompts(machine: HostedCudaMachine, program: Program, rows: int) -> None:
    """A prompt in steps of `rows`, and what the experts take of such a step."""
    ids, times = (np.arange(PROMPT) * 7919 % program.n_tokens).astype(np.int32), []
    for _ in range(3):
        table = PageTable(PAGES)
        table.extend(0, PROMPT)
        start = perf_counter()
        for at in range(0, PROMPT, rows):
            positions = np.arange(at, min(at + rows, PROMPT), dtype=np.int32)
            last = at + rows >= PROMPT
            wanted = np.array([len(positions) - 1], np.int32) if last else NO_LOGITS
            machine.step(Batch(ids[positions], positions * 0, positions, wanted), table)
        times.append(perf_counter() - start)
    start = perf_counter()
    for op in mixtures_of(program):
        machine.host.run(op, rows)
    experts = perf_counter() - start
    print(
        f"prompt of {PROMPT} in steps of {rows}: {PROMPT / min(times):.0f} tokens/s, "
        f"{min(times) / PROMPT * rows * 1e3:.1f} ms a step, {experts * 1e3:.1f} of that experts",
        flush=True,
    )
