"""What the CUDA machine does on the card of this machine: right, how fast, and where a step's time goes.

    python scripts/bench_cuda.py all [--llama-bench PATH]   everything that is promised, with a table; PATH:
    llama.cpp's, built for the card, which runs the same models in between, as does the llama-batched-bench
    beside it
    python scripts/bench_cuda.py conformance [--cache TYPE] [--cards N] [FIXTURE | SHAPE:TYPE …]   logits
    against the reference machine, with keys and values kept as f32, f16, q8_0 or q4_0, on one card or on N
    by tensors; SHAPE:TYPE: two random layers
    python scripts/bench_cuda.py many [FIXTURE …]           requests of several threads against single runs
    python scripts/bench_cuda.py instructions               each PTX instruction against NumPy
    python scripts/bench_cuda.py decode SHAPE TYPE [DEPTH …]   tokens a second, and each op's time and
    bandwidth
    python scripts/bench_cuda.py attention SHAPE TYPE [TOKENS …]   attention of one row, in several kinds of
    blocks
    python scripts/bench_cuda.py batch SHAPE TYPE           1 … 128 sequences at once, and a long one beside
    short ones
    python scripts/bench_cuda.py choose SHAPE TYPE          what it saves to choose tokens on the card
    python scripts/bench_cuda.py host SHAPE TYPE [VARIANT …]   what Python and the driver add to a step,
    by ways of waiting for the card and of copying
    python scripts/bench_cuda.py launches                   what it costs to go from op to op
    python scripts/bench_cuda.py latent [HEADS …]           a layer of latent attention, with and without
    tensor cores
    python scripts/bench_cuda.py prefill SHAPE TYPE [ROWS …]
    python scripts/bench_cuda.py prompt-attention SHAPE CACHE [DEPTH …]   a layer's attention of 2,048 rows
    of a prompt, with and without wgmma; CACHE: f16, q8_0 or q4_0
    python scripts/bench_cuda.py recurrent [ROWS]           recurrent ops over a prompt, together and row by
    row
    python scripts/bench_cuda.py sweep SHAPE TYPE [ROWS]    ways to share a product's work between warps
    python scripts/bench_cuda.py wide SHAPE TYPE [ROWS …]   kernels and tiles for products of many rows
    python scripts/bench_cuda.py batch-tiles SHAPE TYPE [ROWS …]   tiles for products of 16 … 128 rows
    python scripts/bench_cuda.py cards SHAPE TYPE [N]       one card beside N (2) by layers and by tensors
    python scripts/bench_cuda.py cpu-moe SHAPE TYPE [LAYERS] [ROWS]   a mixture whose experts the CPU
    computes, with so many layers, prompts in steps of so many rows: right, how fast, and what the card and
    the experts take
    python scripts/bench_cuda.py copy                       the card's copy bandwidth
    python scripts/bench_cuda.py first-run SHAPE TYPE       what a first run waits for: each stage, and each
    kernel's seconds; also without a card, and SHAPE may be a GGUF file
    python scripts/bench_cuda.py kernels SHAPE:TYPE …       how many kernels models share, without a card

Models are made up: random blocks in the shape of a published model.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from cuda_bench.attention import LAYERS, attention
from cuda_bench.batch import batch
from cuda_bench.cards import cards
from cuda_bench.cpu_moe import cpu_moe
from cuda_bench.first_run import count_kernels, first_run
from cuda_bench.host import host
from cuda_bench.latent import latent
from cuda_bench.launches import launches as between_ops
from cuda_bench.llama import llama_speeds
from cuda_bench.many import many
from cuda_bench.mixtures import MIXTURES, random_mixture
from cuda_bench.models import random_model
from cuda_bench.prompt_attention import prompt_attention
from cuda_bench.recurrent import recurrent
from cuda_bench.right import conformance, instructions
from cuda_bench.tiles import batch_tiles, sweep, wide
from cuda_bench.timing import copy_bandwidth, product_bytes, seconds

from kukri.cli.console.table import markdown_table
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.sampling.sampler import Sampler
from kukri.runtime.ops import Program
from kukri.runtime.sizing.traffic import bytes_per_token

Speeds = dict[str, float]  # tokens a second by the name of the test


def made_up(shape: str, kind: str, layers: int = 0) -> Program:
    """A random program, with only some of its layers if their number is given."""
    made = random_mixture if shape in MIXTURES else random_model
    return made(shape, kind, layers)


def profile(machine: CudaMachine, n: int = 1) -> None:
    launches = machine.plan(n, n)
    print(f"{len(launches)} launches, together {seconds(machine.device, launches) * 1e3:.3f} ms")
    for name, count in Counter(launch.name for launch in launches).items():
        own = [launch for launch in launches if launch.name == name]
        time_ = seconds(machine.device, own)
        is_product = name.startswith(("decode_matmul", "batch_matmul"))
        speed = f"{product_bytes(name) * count / time_ / 1e9:6.0f} GB/s" if is_product else ""
        print(f"  {name:34} {count:4} x {time_ / count * 1e6:8.2f} us = {time_ * 1e3:7.3f} ms  {speed}")


def decode(shape: str, kind: str, depths: list[int]) -> Speeds:
    start = time.perf_counter()
    program = made_up(shape, kind)
    made = time.perf_counter()
    n_pages = (max([256, *depths]) + 256) // 64
    machine = CudaMachine(program, n_pages, background=False)
    loaded = time.perf_counter()
    print(f"{shape} {kind} on {machine.device.name}: made {made - start:.1f} s, loaded {loaded - made:.1f} s")
    speeds: Speeds = {}
    for depth in depths or [0]:
        table = PageTable(n_pages)
        table.extend(0, depth)
        for i in range(130):
            if i == 2:
                begin = time.perf_counter()
            table.extend(0, 1)
            batch = Batch(*(np.array([v], np.int32) for v in (i, 0, depth + i, 0)))
            logits = machine.step(batch, table)
        wall = (time.perf_counter() - begin) / 128
        assert np.isfinite(logits).all()
        print(f"decode 128 at depth {depth}: {1 / wall:.1f} tokens/s, {wall * 1e3:.3f} ms a step")
        profile(machine)
        speeds["tg128" + (f" @ d{depth}" if depth else "")] = 1 / wall
    machine.close()
    return speeds


def choose(shape: str, kind: str) -> None:
    """Steps whose logits all come back, and steps of which only the best tokens do; both with the sampler."""
    machine = CudaMachine(random_model(shape, kind), 4, background=False)
    vocab = machine.program.logits.width
    for name, params in (
        ("greedy", SamplingParams(temperature=0)),
        ("top-k 40", SamplingParams(seed=0)),
        ("penalty", SamplingParams(seed=0, repeat_penalty=1.1)),
    ):
        chosen: list[list[int]] = []
        walls = []
        for best in (False, True):
            table, sampler, history = PageTable(4), Sampler(params), [1]
            for i in range(130):
                if i == 2:
                    begin = time.perf_counter()
                table.extend(0, 1)
                step = Batch(*(np.array([v], np.int32) for v in (history[-1], 0, i, 0)))
                k = sampler.top_k_needed(vocab, len(history))
                found = machine.top_k(step, table, k, vocab) if best else machine.step(step, table)
                history.append(sampler.sample(found[0], history))
            walls.append((time.perf_counter() - begin) / 128)
            chosen.append(history)
        assert chosen[0] == chosen[1]
        print(f"{name}: {walls[0] * 1e6:.0f} us a token with all logits, {walls[1] * 1e6:.0f} with the best")
    machine.close()


def prefill(shape: str, kind: str, rows: list[int]) -> Speeds:
    speeds: Speeds = {"pp4096": 0.0}
    most = max(rows or [512])
    program = made_up(shape, kind)
    machine = CudaMachine(program, 4096 // 64, max_rows=most, background=False)
    for n in rows or [512]:
        times = []
        for _ in range(3):
            table = PageTable(64)
            begin = time.perf_counter()
            for at in range(0, 4096, n):
                table.extend(0, n)
                r = np.arange(n, dtype=np.int32)
                logits_indices = np.array([n - 1] if at + n == 4096 else [], np.int32)
                machine.step(Batch(r % 100, np.zeros(n, np.int32), r + at, logits_indices), table)
            times.append(time.perf_counter() - begin)
        print(f"prefill 4096 in chunks of {n}: {4096 / min(times):.0f} tokens/s")
        speeds["pp4096"] = max(speeds["pp4096"], 4096 / min(times))
    launches = machine.plan(most, 0, False, True)
    for name, count in Counter(launch.name for launch in launches).items():
        own = [launch for launch in launches if launch.name == name]
        time_ = seconds(machine.device, own, 5)
        print(f"  {name:34} {count:4} x {time_ / count * 1e6:8.2f} us = {time_ * 1e3:7.3f} ms")
    machine.close()
    return speeds


PROMISED = [("llama-3.1-8b", "Q4_0"), ("llama-3.1-8b", "Q8_0"), ("llama-3.2-1b", "Q4_0")]


def everything(llama_bench: str | None) -> None:
    device = Device()
    name, copy = device.name, copy_bandwidth(device)
    device.close()
    instructions()
    conformance([])
    rows = []
    for shape, kind in PROMISED:
        speeds = (
            prefill(shape, kind, [512, 1024, 2048])
            | decode(shape, kind, [0, 8192])
            | batch(shape, kind, profile)
        )
        print(f"{shape} {kind}: {speeds}", flush=True)
        peer = llama_speeds(Path(llama_bench), shape, kind) if llama_bench else {}
        read = bytes_per_token(random_model(shape, kind), "f16", 1, 128)
        for test, speed in speeds.items():
            other = peer.get(test)
            rows.append(
                (
                    f"{shape} {kind}",
                    test,
                    f"{speed:.0f}",
                    f"{other:.0f}" if other else "",
                    f"{speed / other:.2f}" if other else "",
                    f"{read * speed / copy:.0%}" if test == "tg128" else "",
                )
            )
    print(f"\n{name}, copies {copy / 1e9:.0f} GB/s, tokens a second\n")
    header = ("model", "test", "kukri", "llama.cpp", "ratio", "of bandwidth")
    print(markdown_table(header, rows, left=(0, 1)), flush=True)
    choose(*PROMISED[-1])
    host(*PROMISED[-1], ["spin"])


def main() -> None:
    command, *rest = sys.argv[1:]
    if command == "all":
        everything(rest[rest.index("--llama-bench") + 1] if "--llama-bench" in rest else None)
    elif command == "conformance":
        options = {"--cache": "auto", "--cards": "1"}
        while rest and rest[0] in options:
            options[rest[0]], rest = rest[1], rest[2:]
        conformance(rest, options["--cache"], int(options["--cards"]))
    elif command == "many":
        many(rest)
    elif command == "cards":
        cards(rest[0], rest[1], *(int(n) for n in rest[2:]))
    elif command == "cpu-moe":
        cpu_moe(rest[0], rest[1], *(int(n) for n in rest[2:]))
    elif command == "first-run":
        first_run(rest[0], rest[1] if len(rest) > 1 else "")
    elif command == "kernels":
        count_kernels(rest)
    elif command == "latent":
        latent([int(n) for n in rest])
    elif command == "prompt-attention":
        prompt_attention(rest[0], rest[1], [int(n) for n in rest[2:]])
    elif command == "copy":
        device = Device()
        print(
            f"{device.name}, driver for CUDA {device.driver_version()}: "
            f"copies {copy_bandwidth(device) / 1e9:.0f} GB/s"
        )
    elif command == "recurrent":
        recurrent(seconds, *(int(n) for n in rest))
    elif command == "instructions":
        instructions()
    elif command == "decode":
        decode(rest[0], rest[1], [int(d) for d in rest[2:]])
    elif command == "attention":
        attention(made_up(rest[0], rest[1], LAYERS), [int(d) for d in rest[2:]])
    elif command == "batch":
        batch(rest[0], rest[1], profile)
    elif command == "choose":
        choose(*rest)
    elif command == "wide":
        wide(rest[0], rest[1], [int(n) for n in rest[2:]])
    elif command == "batch-tiles":
        batch_tiles(rest[0], rest[1], [int(n) for n in rest[2:]])
    elif command == "launches":
        between_ops()
    elif command == "host":
        host(rest[0], rest[1], rest[2:])
    elif command == "prefill":
        prefill(rest[0], rest[1], [int(n) for n in rest[2:]])
    else:
        sweep(rest[0], rest[1], *(int(n) for n in rest[2:]))


if __name__ == "__main__":
    main()
