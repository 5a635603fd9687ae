"""`llm bench`: speed of prefill and decode, measured as llama-bench does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ...runtime.hub.resolve import resolve
from ..bench.plan import MOST_PARALLEL, MOST_THREADS, Plan, Test, numbers, pair
from ..bench.report import WRITERS, for_terminal
from ..bench.results import Result
from ..console import terminal
from ..console.options import (
    DEFAULT_MODEL,
    THREADS_HELP,
    CpuMoe,
    Device,
    DeviceFlag,
    Devices,
    GpuLayers,
    KvType,
    NCpuMoe,
    Speculate,
    SplitMode,
    SplitModeFlag,
    cpu_moe_layers,
    flag,
    load_options,
    with_options,
)
from ..console.progress import Progress
from ..generation.adapters import AdapterOptions
from ..settings.model import ModelsOption


class Format(StrEnum):
    auto = "auto"
    md = "md"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


@dataclass(frozen=True, kw_only=True)
class BenchOptions(AdapterOptions):
    """The flags of `llm bench`, those of adapters among them."""

    n_prompt: Annotated[
        list[str] | None,
        flag("-p", "--n-prompt", metavar="N,…", help="Tokens to prefill; 0: no such test; default: 512."),
    ] = None
    n_gen: Annotated[
        list[str] | None,
        flag("-n", "--n-gen", metavar="N,…", help="Tokens to decode; 0: no such test; default: 128."),
    ] = None
    pg: Annotated[
        list[str] | None,
        flag("-pg", "--pg", metavar="P,N", help="Prefill of P tokens and decode of N timed together."),
    ] = None
    n_depth: Annotated[
        list[str] | None,
        flag("-d", "--n-depth", metavar="N,…", help="Tokens in the cache beforehand; default: 0."),
    ] = None
    parallel: Annotated[
        list[str] | None,
        flag("--parallel", metavar="N,…", help="Sequences that run at the same time; default: 1."),
    ] = None
    threads: Annotated[list[str] | None, flag("-t", "--threads", metavar="N,…", help=THREADS_HELP)] = None
    repetitions: Annotated[
        int, flag("-r", "--repetitions", metavar="N", min=1, max=10_000, help="Runs of each test.")
    ] = 5
    kv_type: Annotated[
        KvType, flag("--kv-type", help="Number format of the KV cache; auto: as the other commands choose.")
    ] = KvType.auto
    device: DeviceFlag = Device.auto
    gpu_layers: GpuLayers = None
    devices: Devices = None
    split_mode: SplitModeFlag = SplitMode.auto
    cpu_moe: CpuMoe = False
    n_cpu_moe: NCpuMoe = None
    draft: Annotated[
        str | None,
        flag("--draft", metavar="MODEL", help="Measure decoding with drafts of this model as well."),
    ] = None
    speculate: Annotated[
        Speculate,
        flag(
            "--speculate", help="Measure decoding with drafts as well; default: off, or draft with --draft."
        ),
    ] = Speculate.off
    no_warmup: Annotated[bool, flag("--no-warmup", help="Count the first run of a test as well.")] = False
    no_cold: Annotated[
        bool, flag("--no-cold", help="Leave out the time to the first token of a new process.")
    ] = False
    serve: Annotated[
        str | None,
        flag("--serve", metavar="URL|MODEL", help="Measure a server instead, or one started for a model."),
    ] = None
    concurrency: Annotated[
        list[str] | None,
        flag("--concurrency", metavar="N,…", help="Clients of the server at a time; default: 1,4,16,64."),
    ] = None
    rate: Annotated[
        list[str] | None,
        flag("--rate", metavar="X,…", help="Requests a second, at random times; default: inf, back to back."),
    ] = None
    requests: Annotated[
        int | None,
        flag("--requests", metavar="N", min=1, max=1_000_000, help="Requests in all; default: 4 a client."),
    ] = None
    goodput: Annotated[
        list[str] | None,
        flag("--goodput", metavar="LIMITS", help="ttft=MS,tpot=MS: count requests a second within these."),
    ] = None
    api_key: Annotated[str | None, flag("--api-key", metavar="KEY", help="The server's key.")] = None
    plot: Annotated[
        Path | None, flag("--plot", metavar="FILE", help="With --serve: draw the results, as .png or .svg.")
    ] = None
    output: Annotated[
        Format,
        flag("-o", "--output", help="Format of the results; auto: md, but records on a narrow terminal."),
    ] = Format.auto


@with_options
def bench(options: BenchOptions, models: ModelsOption = None) -> None:
    """Measure prefill (pp) and decode (tg) speed in tokens a second.

    Same tests and columns as llama-bench; tokenising and sampling are not timed there either. N,… is a
    list as there: numbers, ranges 1-4, 0-1024+256 or 1-16*2, commas between them.

    Medians, the time to the first token warm and cold, and what part of the memory's read bandwidth
    decoding uses come in a second table. Loading and compiling are timed apart.

    --serve sends requests to a server, with prompts and answers of -p and -n tokens, or of lengths such as
    conversations have.
    """
    if options.serve is not None:
        _bench_server(options, models)
        return
    if options.plot is not None:
        raise typer.BadParameter("--plot goes with --serve")
    plan = _plan(options)
    from ..bench.one_model import bench_model
    from ..console.description import describe

    names = models or [DEFAULT_MODEL]
    paths = [resolve(name, Progress) for name in names]
    abouts = [describe(path) for path in paths]  # all of them before the first is measured
    results: list[Result] = []
    for name, path, about in zip(names, paths, abouts, strict=True):
        for n_threads in plan.threads:
            results += bench_model(plan, name, path, about, n_threads)
    if options.output is Format.auto:
        terminal.write(for_terminal(results, terminal.width()))
    else:
        terminal.write(WRITERS[options.output.value](results))


def _bench_server(options: BenchOptions, models: list[str] | None) -> None:
    """`--serve`: a usage error for lists where a server takes one number."""
    from ..bench.serving.command import ServingPlan, bench_server, limits, rates
    from ..eval.plot import check_plot

    if models or options.pg or options.n_depth or options.parallel:
        raise typer.BadParameter("--serve names the model itself, and goes without -d, -pg and --parallel")
    if options.plot is not None:
        check_plot(options.plot)
    flags = ["--kv-type", options.kv_type.value, "--device", options.device.value]
    flags += [] if options.gpu_layers is None else ["--gpu-layers", str(options.gpu_layers)]
    flags += ["--devices", options.devices] if options.devices else []
    flags += ["--split-mode", options.split_mode.value]
    n_layers = cpu_moe_layers(options.cpu_moe, options.n_cpu_moe)
    flags += ["--n-cpu-moe", str(n_layers)] if n_layers else []
    flags += ["--threads", *options.threads] if options.threads else []
    if options.lora or options.control_vector or options.draft or options.speculate is not Speculate.off:
        raise typer.BadParameter("--serve goes without adapters and drafts")
    plan = ServingPlan(
        target=options.serve or "",
        concurrency=numbers(options.concurrency or ["1", "4", "16", "64"], "--concurrency", 1, MOST_PARALLEL),
        rates=rates(options.rate or ["inf"]),
        requests=options.requests,
        n_prompt=_one_length(options.n_prompt, "-p"),
        n_new=_one_length(options.n_gen, "-n"),
        limits=limits(options.goodput or []),
        flags=flags,
        api_key=options.api_key,
    )
    bench_server(plan, options.output.value, options.plot)


def _one_length(texts: list[str] | None, name: str) -> int | None:
    """The number of tokens of each request; None if no flag says."""
    if texts is None:
        return None
    found = numbers(texts, name, 1)
    if len(found) > 1:
        raise typer.BadParameter("--serve takes one length", param_hint=name)
    return found[0]


def _plan(options: BenchOptions) -> Plan:
    """The tests that the flags ask for; a usage error if there are none."""
    depths = numbers(options.n_depth or ["0"], "-d")
    prompts, gens = numbers(options.n_prompt or ["512"], "-p"), numbers(options.n_gen or ["128"], "-n")
    parallels = numbers(options.parallel or ["1"], "--parallel", 1, MOST_PARALLEL)
    pairs = [pair(text) for text in options.pg or []]
    kinds = [*((p, 0) for p in prompts if p), *((0, n) for n in gens if n), *pairs]
    if not kinds:
        raise typer.BadParameter("-p 0 and -n 0 leave nothing to measure")
    plan = Plan(
        tests=[Test(p, n, d, parallel) for d in depths for p, n in kinds for parallel in parallels],
        threads=numbers(options.threads, "-t", 1, MOST_THREADS) if options.threads else [None],
        repetitions=options.repetitions,
        kv_type=options.kv_type.value,
        device=options.device.value,
        gpu_layers=options.gpu_layers,
        devices=options.devices,
        split_mode=options.split_mode.value,
        cpu_moe=cpu_moe_layers(options.cpu_moe, options.n_cpu_moe),
        warm_up=not options.no_warmup,
        cold=not options.no_cold,
        adapters=options.adapters or None,
        **_drafts(options),
    )
    load_options(**plan.placing, speculate=plan.speculate, draft=plan.draft)  # before anything is measured
    return plan


def _drafts(options: BenchOptions) -> dict[str, Any]:
    """What the plan says of drafts; a draft model is downloaded first. A usage error for a missing one."""
    speculate = options.speculate
    if options.draft is not None and speculate is Speculate.off:
        speculate = Speculate.draft
    if speculate is Speculate.draft and options.draft is None:
        raise typer.BadParameter("--speculate draft needs a draft model: --draft MODEL")
    uses = options.draft is not None and speculate in (Speculate.auto, Speculate.draft)
    return {
        "speculate": speculate.value,
        "draft": str(resolve(options.draft, Progress)) if options.draft and uses else None,
    }
