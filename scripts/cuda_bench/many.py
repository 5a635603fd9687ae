"""Whether many sequences on the card give what each gives alone, and what they cost: see bench_cuda.py."""

from __future__ import annotations

import random
import tarfile
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from cuda_bench.models import DATA

from kukri.quant.checkpoint.folder import Checkpoint
from kukri.runtime.config.from_hf import config_from_hf
from kukri.runtime.config.model_config import ModelConfig
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.program.build import build_program
from kukri.runtime.weights.binding import Weights

NAMES = ["llama-gqa", "gemma3", "mixtral", "deepseek-v3", "lfm2", "qwen3.5", "falcon-h1"]
N_PAGES, SEQUENCES = 16, 4


def many(names: list[str]) -> None:
    """Requests of four threads on one machine, whose ids must be those of single runs; then their pages,
    taken out and put into another machine."""
    folder = Path(tempfile.mkdtemp())
    for path in DATA.glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    for name in names or NAMES:
        start = time.perf_counter()
        model = Checkpoint.open(folder / name)
        config = config_from_hf(model.config, model.tensors)
        program = build_program(config, Weights(config, model.tensors))
        machines = [CudaMachine(program, N_PAGES, max_sequences=SEQUENCES) for _ in range(2)]

        ids = (np.load(folder / name / "reference.npz")["input_ids"].tolist() * 4)[:90]
        wrong, n_requests = check_requests(
            engine(machines[0], config), engine(machines[1], config, alone=True), ids
        )
        moved = check_pages(engine(machines[0], config), engine(machines[1], config), ids)
        said = "right" if not wrong and moved else "WRONG"
        pages = "moved" if moved else "NOT as they were"
        seconds = time.perf_counter() - start
        print(
            f"{name:12} {said}: {n_requests} requests, {wrong} with other ids; pages {pages}; {seconds:.1f} s"
        )
        for machine in machines:
            machine.close()


def engine(machine: CudaMachine, config: ModelConfig, alone: bool = False) -> Engine:
    return Engine(
        machine,
        PageTable(N_PAGES, SEQUENCES),
        config,
        context=200,
        prefill_chunk=48,
        states=machine.states,
        deterministic=alone,
    )


def greedy(n: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)


def check_requests(shared: Engine, alone: Engine, ids: list[int]) -> tuple[int, int]:
    """(requests with other ids than alone, requests)."""
    draw = random.Random(7)
    wanted = []
    for _ in range(40):
        beginning = ids[: draw.choice([0, 10, 70, 90])]
        wanted.append(
            ([*beginning, *(draw.choice(ids) for _ in range(draw.randrange(1, 30)))], draw.randrange(1, 24))
        )
    expected = [list(alone.submit(prompt, greedy(n))) for prompt, n in wanted]
    wrong: list[int] = []

    def work(first: int) -> None:
        for i in range(first, len(wanted), 4):
            prompt, n = wanted[i]
            if list(shared.submit(prompt, greedy(n))) != expected[i]:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not shared.table.lengths.any()
    return len(wrong), len(wanted)


def check_pages(one: Engine, other: Engine, ids: list[int]) -> bool:
    """Whether a generation goes on from pages of another machine as it does from its own."""
    first = list(one.submit(ids, greedy(4)))
    turn = [*ids, *first, 5, 6]
    assert one.machine.page_layout == other.machine.page_layout
    kept = one.take_out(turn)
    expected = one.submit(turn, greedy(12))
    wanted = list(expected)
    other.reset()
    if not other.put_in(kept):
        return False
    got = other.submit(turn, greedy(12))
    return list(got) == wanted and got.stats.cached_tokens == len(kept.ids) >= 64
