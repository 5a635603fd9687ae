"""Measure what one streaming client of `llm serve` gets of the speed of `llm bench`.

    python scripts/bench_one_client.py MODEL.gguf --rounds 8

In one process and in turn, at the same memory, so that a machine that is slower now and then is so for all:
the decode loop that `llm bench -n 128 -d 128` times, the engine without a server, and the client of `llm
bench --serve`, in a process of its own, that asks this process over HTTP. Nothing is drafted. Printed are
tokens a second, the medians of their ratios to the loops in front and behind, where these agree, and the CPU
time that a part of the stream takes of the event loop's thread and of the client's process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import clock_gettime, perf_counter, process_time, pthread_getcpuclockid

import numpy as np

from kukri.cli.bench.measure import measure
from kukri.cli.bench.plan import Test
from kukri.cli.bench.serving.client import Target
from kukri.cli.bench.serving.workload import jobs
from kukri.cli.commands.serve import SWITCH_SECONDS
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.model import Model
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve.application import app
from kukri.runtime.serve.http.options import ServeOptions
from kukri.runtime.serve.http.server import Server, listen

N_PROMPT = 128
EVEN = 0.04  # that two loops may differ for what is between them to count


def loop(model: Model, n: int) -> float:
    """Tokens a second of the steps alone."""
    engine = model.engine
    engine.reset()
    test = Test(0, n, N_PROMPT, 1)
    return n / measure(engine.machine, engine.table, model.config.vocab_size, test, 1)[0]


def engine_alone(model: Model, n: int, seed: int) -> float:
    """Tokens a second behind the first of an answer that nobody serves, by the engine's own thread."""
    prompt = model.tokenizer.encode(jobs(1, N_PROMPT, n, seed)[0].prompt)
    params = SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True)
    generation = model.engine.submit(prompt, params)

    async def read() -> float:
        start = 0.0
        async for _ in generation.batches(10.0):
            start = start or perf_counter()
        return perf_counter() - start

    return (n - 1) / asyncio.run(read())


@contextmanager
def served(model: Model, interval: float | None) -> Iterator[tuple[str, int]]:
    """The address at which the model is served while the block runs, and the clock of the serving thread."""
    options = ServeOptions() if interval is None else ServeOptions(part_seconds=interval / 1000)
    listening = listen("127.0.0.1", 0)
    server = Server(app({"model": model}, options, preload=False), options)
    run = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    run.start()
    try:
        assert run.ident is not None
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", pthread_getcpuclockid(run.ident)
    finally:
        server.should_exit = True
        run.join()


def ask(url: str, n: int) -> None:
    """Be the client: a line of stdin is a seed, and its answer a line of stdout."""
    for line in sys.stdin:
        job = jobs(1, N_PROMPT, n, int(line))[0]
        start = process_time()
        sample = asyncio.run(Target(url, "model", None).complete(job.prompt, n, 0))
        took = process_time() - start
        if sample.error or sample.per_token is None:
            raise SystemExit(sample.error)
        print(json.dumps([1 / sample.per_token, sample.between, took]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--interval", type=float, help="milliseconds between two parts")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        ask(options.client, options.n)
        return
    sys.setswitchinterval(SWITCH_SECONDS)
    model = load_model(options.model, LoadOptions(device="cpu", context=4096, parallel=16, speculate="off"))
    model.engine.start()
    command = [sys.executable, __file__, options.model, "-n", str(options.n), "--client"]
    with (
        served(model, options.interval) as (url, clock),
        subprocess.Popen([*command, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client,
    ):
        assert client.stdin is not None
        assert client.stdout is not None
        ratios, between, busy = [], list[float](), list[tuple[float, float]]()
        before = loop(model, options.n)
        for seed in range(options.rounds):
            alone, start = engine_alone(model, options.n, 1000 + seed), clock_gettime(clock)
            print(seed, file=client.stdin, flush=True)
            asked, parts, took = json.loads(client.stdout.readline())
            busy.append(((clock_gettime(clock) - start) / len(parts), took / len(parts)))
            after = loop(model, options.n)
            if abs(after - before) < EVEN * after:
                steps = (before + after) / 2
                ratios.append((steps, alone / steps, asked / steps))
                between += parts
            before = after
        client.stdin.close()
    if not ratios:
        raise SystemExit("the machine is never as fast for a second: something else runs on it")
    speed, alone, asked = map(statistics.median, zip(*ratios, strict=True))
    p50, p99 = 1000 * np.percentile(between, (50, 99))
    print(f"{len(ratios)} of {options.rounds} rounds: the loop makes {speed:.1f} tokens/s")
    print(f"the engine makes {alone:.1%} of that, the client gets {asked:.1%}")
    print(f"between parts {p50:.1f} ms (p50), {p99:.1f} ms (p99)")
    server, reader = (1e6 * statistics.median(each) for each in zip(*busy, strict=True))
    print(f"CPU time a part, requests included: event loop {server:.0f} µs, client {reader:.0f} µs")


if __name__ == "__main__":
    main()
