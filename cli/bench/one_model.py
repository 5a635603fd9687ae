"""The tests of `llm bench` on one model: load it, run them, and start anew for the cold ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...runtime.sizing.traffic import bytes_per_token
from ..console import terminal
from ..console.options import load_options
from .cold import cold_start
from .measure import LoadTimes, Used, measure, used_devices
from .plan import Plan, Test
from .results import Result, about_model, deviation, speeds
from .speculation import LEAST_PROMPT, is_speculated, measure_speculation

if TYPE_CHECKING:
    from ...runtime.cpu.bandwidth import ReadBandwidth
    from ...runtime.cuda.driver.bandwidth import CopyBandwidth
    from ...runtime.model.model import Model
    from ..console.description import Description

COLD_STARTS = 3  # at most: each loads the model anew


def bench_model(
    plan: Plan, name: str, path: Path, about: Description, n_threads: int | None
) -> Iterator[Result]:
    """The results of one model with one number of threads."""
    context = max(test.n_depth + test.n_tokens for test in plan.tests)
    if plan.speculate != "off":
        context += LEAST_PROMPT + 1
    results = []
    with ExitStack() as stack:
        times, loaded = _load(name, path, context, n_threads, plan)
        stack.enter_context(loaded)
        machine, table = loaded.engine.machine, loaded.engine.table
        used = used_devices(machine)
        memory: ReadBandwidth | CopyBandwidth | None = None
        for test in plan.tests:
            result = about_model(about, used, test, times)
            decode = test.n_gen > 0 and not test.n_prompt and not used.both  # of one memory
            with terminal.status(f"{name}: {test.name} …"):
                if decode and memory is None:
                    memory = _bandwidth(machine, used)
                    stack.callback(memory.close)
                before = memory.measure() if decode and memory else 0.0
                run = measure(machine, table, loaded.config.vocab_size, test, plan.repetitions, plan.warm_up)
                after = memory.measure() if decode and memory else 0.0
            result |= speeds(test, run)
            if test.n_prompt and not test.n_gen and test.n_parallel == 1:
                result |= {"ttft_seconds": statistics.median(run), "ttft_stddev": deviation(run)}
            if decode:
                result |= _reading(used, test, result["median_ts"], before, after)
            results.append(result)
            if plan.speculate != "off" and is_speculated(test):
                with terminal.status(f"{name}: {test.name} with drafts …"):
                    drafted = measure_speculation(loaded, test, plan.repetitions, plan.warm_up)
                about_it = about_model(about, used, test, times) | speeds(test, drafted.seconds)
                named = {"test": f"{test.name} + {plan.speculate}", "speculate": plan.speculate}
                results.append(about_it | named | drafted.facts)
        if plan.adapters:
            results = [result | {"adapters": plan.adapters.described} for result in results]
    for result in results:  # the model is closed by now: a second one need not fit beside it
        if plan.cold and "ttft_seconds" in result and not result["n_depth"]:
            with terminal.status(f"{name}: starting anew for {result['test']} …"):
                result |= _cold(path, result["n_prompt"], used.threads, plan)
    yield from results


def _reading(used: Used, test: Test, speed: float, before: float, after: float) -> Result:
    """What decoding reads, of the bandwidth in bytes a second that was measured before and after a test."""
    seen = test.n_depth + test.n_prompt + 1
    read = bytes_per_token(used.program, used.kv_type, seen, test.n_gen, test.n_parallel)
    return {
        "bytes_per_token": round(read),
        "read_bandwidth": max(before, after),
        "read_bandwidth_before": before,
        "read_bandwidth_after": after,
        "bandwidth_share": read * speed / max(before, after),
    }


def _load(name: str, path: Path, context: int, n_threads: int | None, plan: Plan) -> tuple[LoadTimes, Model]:
    """Load a model and time that. Imports are not counted: they are the same for every model."""
    from ...quant.jit.kernel_cache import cache_folder

    warnings: list[str] = []
    with terminal.status(f"loading {name} …"):
        from ...runtime.adapters.stored import NO_ADAPTERS
        from ...runtime.model.loading import load_model

        with LoadTimes(cache_folder()) as times:
            parallel = max(test.n_parallel for test in plan.tests)
            options = load_options(
                **plan.placing, context=context, threads=n_threads, parallel=parallel, background=False,
                speculate=plan.speculate, draft=plan.draft, adapters=plan.adapters or NO_ADAPTERS,
            )  # fmt: skip
            text = plan.speculate != "off"
            model = load_model(path, options, warn=warnings.append, progress=times.stage, text=text)
    for warning in warnings:
        terminal.note(warning)
    return times, model


def _bandwidth(machine: Any, used: Used) -> ReadBandwidth | CopyBandwidth:
    """Measures the bandwidth of the memory that holds the weights: the GPU's, if the GPU runs any layers."""
    if used.cuda_device is not None:
        from ...runtime.cuda.driver.bandwidth import CopyBandwidth

        return CopyBandwidth(used.cuda_device)
    from ...runtime.cpu.bandwidth import ReadBandwidth, buffer_bytes
    from ...runtime.model.memory_check import available_memory

    available = available_memory()
    return ReadBandwidth(used.threads, min(buffer_bytes(), (available or buffer_bytes()) // 4))


def _cold(path: Path, n_prompt: int, n_threads: int, plan: Plan) -> Result:
    starts = min(COLD_STARTS, plan.repetitions)
    seconds = [cold_start(path, n_prompt, n_threads, plan) for _ in range(starts)]
    known = [s for s in seconds if s is not None]
    return {"ttft_cold_seconds": statistics.median(known) if known else None, "samples_cold_seconds": known}
