"""`llm bench`: what it measures, what it counts, and the forms it is told in."""

from __future__ import annotations

import csv
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import kukri.runtime.model.placing
from kukri.cli.bench import cold as bench_cold
from kukri.cli.bench import one_model
from kukri.cli.bench.measure import LoadTimes, measure
from kukri.cli.bench.plan import Plan, numbers
from kukri.cli.bench.plan import Test as Case
from kukri.cli.console.table import markdown_table
from kukri.runtime.cpu import bandwidth
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.state import SequenceStates
from kukri.runtime.model.source import open_source
from kukri.runtime.ops import MoE, StateLayer
from kukri.runtime.program.build import build_program
from kukri.runtime.sizing.traffic import bytes_per_token, mean_seen
from kukri.runtime.weights.binding import Weights

from ...running import Run, failed
from ...tiny_model import FFN, HEADS, HIDDEN, KV_HEADS, LAYERS, write_tiny_model

KEYS = {  # of llama-bench
    "build_commit", "cpu_info", "backends", "model_filename", "model_type", "model_size", "model_n_params",
    "n_threads", "type_k", "type_v", "n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns",
    "avg_ts", "stddev_ts", "samples_ns", "samples_ts",
}  # fmt: skip


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidth out of a small buffer: quick, and nobody looks at the number."""
    monkeypatch.setattr(bandwidth, "MIN_BYTES", 1 << 20)
    monkeypatch.setattr(bandwidth, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(bandwidth, "RUNS", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_json_has_the_keys_of_llama_bench_and_more(llm_inside: Run, tiny: Path) -> None:
    flags = ("-p", 20, "-n", 3, "-r", 3, "-d", 7, "-t", 1, "--no-cold")
    prefill, decode = json.loads(llm_inside("bench", "-m", tiny, *flags, "-o", "json").stdout)
    assert set(prefill) >= KEYS
    assert set(decode) >= KEYS
    assert (prefill["n_prompt"], prefill["n_gen"], prefill["n_depth"], prefill["n_threads"]) == (20, 0, 7, 1)
    assert (decode["n_prompt"], decode["n_gen"], decode["test"]) == (0, 3, "tg3 @ d7")
    assert (prefill["model_type"], prefill["model_n_params"]) == ("llama 108.0k F32", 107968)
    for result, tokens in ((prefill, 20), (decode, 3)):
        samples = result["samples_ts"]
        assert len(samples) == 3
        assert result["avg_ts"] == pytest.approx(sum(samples) / 3)
        assert result["median_ts"] == sorted(samples)[1]
        assert [tokens / ns * 1e9 for ns in result["samples_ns"]] == pytest.approx(samples, rel=1e-3)
    assert prefill["ttft_seconds"] == pytest.approx(20 / prefill["median_ts"])
    assert "ttft_seconds" not in decode
    assert "ttft_cold_seconds" not in prefill
    assert (
        decode["read_bandwidth"] == max(decode["read_bandwidth_before"], decode["read_bandwidth_after"]) > 0
    )
    used = decode["bytes_per_token"] * decode["median_ts"]
    assert decode["bandwidth_share"] == pytest.approx(used / decode["read_bandwidth"], rel=1e-3)
    assert prefill["load_seconds"] > 0 <= prefill["compile_seconds"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_tables(llm_inside: Run, tiny: Path) -> None:
    shown = llm_inside("bench", "-m", tiny, "-p", 20, "-n", 3, "-r", 2, "-d", 7, "--no-cold").stdout.decode()
    first, second, notes = shown.split("\n\n")
    header, rule, prefill, decode = first.splitlines()
    assert cells(header) == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert len({len(header), len(rule), len(prefill), len(decode)}) == 1
    assert re.search(r"\| +pp20 @ d7 \| +[\d.]+ ± [\d.]+ \|", prefill)
    assert re.search(r"\| +tg3 @ d7 \| +[\d.]+ ± [\d.]+ \|", decode)
    header, rule, prefill, decode = second.splitlines()
    assert cells(header)[3:] == ["median t/s", "first token", "cold", "read a token", "of bandwidth"]
    assert [bool(cell) for cell in cells(prefill)[3:]] == [True, True, False, False, False]
    assert [bool(cell) for cell in cells(decode)[3:]] == [True, False, False, True, True]
    assert re.fullmatch(r"\d+% of [\d.]+ GB/s", cells(decode)[-1])
    assert re.match(r"llama 108.0k F32, \d+ threads?, f32 cache: loaded in [\d.]+ s", notes)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_bar_or_a_line_break_in_a_name_does_not_break_the_table() -> None:
    shown = markdown_table(("a", "b"), [("x|y\nz\x1b[2J", "1")])
    assert shown.splitlines()[2] == r"| x\|y z�[2J | 1 |"
    assert len(shown.splitlines()) == 3


@pytest.mark.usefixtures("quick")
def test_lists_of_values_and_models_are_measured_in_the_order_of_llama_bench(
    llm_inside: Run, tiny: Path, tmp_path: Path
) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", seed=1)
    flags = ("-m", tiny, "-m", other, "-p", "4,6", "-p", 5, "-n", 2, "-pg", "3,2", "-d", "0-8*2,4", "-r", 1)
    bad = llm_inside("bench", *flags)
    assert "0-8*2" in failed(bad, 2)
    done = llm_inside(
        "bench", *flags[:-4], "-d", "0-4+4", "-r", 1, "-t", "1-2", "--no-cold", "--no-warmup", "-o", "jsonl"
    )
    told = [json.loads(line) for line in done.stdout.decode().splitlines()]
    names = ["pp4", "pp6", "pp5", "tg2", "pp3+tg2"]
    names += [f"{name} @ d4" for name in names]
    assert [r["test"] for r in told] == names * 4
    assert [r["n_threads"] for r in told] == ([1] * 10 + [2] * 10) * 2
    assert [r["model_filename"] for r in told] == [str(tiny)] * 20 + [str(other)] * 20
    assert "bytes_per_token" not in next(r for r in told if r["test"] == "pp3+tg2")
    assert all(r["stddev_ts"] == 0 for r in told)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_csv_has_one_column_a_key(llm_inside: Run, tiny: Path) -> None:
    done = llm_inside("bench", "-m", tiny, "-p", 4, "-n", 2, "-r", 1, "--no-cold", "-o", "csv")
    prefill, decode = csv.DictReader(done.stdout.decode().splitlines())
    assert (prefill["n_prompt"], decode["n_gen"], prefill["test"]) == ("4", "2", "pp4")
    assert prefill["bytes_per_token"] == "" != decode["bytes_per_token"]
    assert not any(name.startswith("samples") for name in prefill)


@pytest.mark.slow
def test_a_cold_start_takes_a_process_of_its_own(llm_inside: Run, tiny: Path) -> None:
    flags = ("-p", "4,6", "-n", 0, "-d", "0,2", "-r", 1, "-t", 1, "-o", "json")
    results = json.loads(llm_inside("bench", "-m", tiny, *flags).stdout)
    cold = {r["test"]: r.get("ttft_cold_seconds") for r in results}
    assert cold == {"pp4": cold["pp4"], "pp6": cold["pp6"], "pp4 @ d2": None, "pp6 @ d2": None}
    assert min(cold["pp4"], cold["pp6"]) > max(r["ttft_seconds"] for r in results)
    assert len(results[0]["samples_cold_seconds"]) == 1


def test_a_cold_start_that_fails_has_no_time(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan([], [1], 1, "auto", "auto", None, True, True)
    (tmp_path / "broken.gguf").write_bytes(tiny.read_bytes()[:1000])
    assert bench_cold.cold_start(tmp_path / "broken.gguf", 4, 1, plan) is None
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    assert bench_cold.cold_start(tiny, 4, 1, plan) is None
    monkeypatch.setattr(sys, "executable", "")
    assert bench_cold.cold_start(tiny, 4, 1, plan) is None


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("-p", "x"), "'x'"),
        (("-p", ""), "''"),
        (("-p", "512,"), "''"),
        (("-p", "-1"), "'-1'"),
        (("-n", "1e3"), "'1e3'"),
        (("-n", "99999999999999999999"), "no number"),
        (("-d", "100000000"), "100000000"),
        (("-p", "8-4"), "'8-4'"),
        (("-p", "1-4+0"), "'1-4+0'"),
        (("-p", "1-4*1"), "'1-4*1'"),
        (("-p", "1-999999999"), "64 values"),
        (("-t", "0"), "range 1…"),
        (("-t", "4000"), "range 1…"),
        (("-r", "0"), "-r"),
        (("-pg", "5"), "512,128"),
        (("-pg", "5,0"), "range 1…"),
        (("-pg", "1,2,3"), "512,128"),
        (("--kv-type", "q3"), "q3"),
        (("-p", "0", "-n", "0"), "nothing to measure"),
        (("-o", "xml"), "xml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_flags_are_one_line_before_anything_is_looked_for(
    llm_inside: Run, flags: tuple[str, ...], word: str
) -> None:
    assert word in failed(llm_inside("bench", "-m", "no/such.gguf", *flags), 2)


def test_every_model_is_looked_at_before_the_first_is_measured(
    llm_inside: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> list[float]:
        raise AssertionError("measured")

    monkeypatch.setattr(one_model, "measure", never)
    failed(llm_inside("bench", "-m", tiny, "-m", tmp_path / "none.gguf"), 3)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    failed(llm_inside("bench", "-m", tiny, "-m", tmp_path / "broken.gguf"), 5)


def test_what_does_not_fit_is_refused(llm_inside: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kukri.runtime.model.placing, "available_memory", lambda: 10**9)
    assert "KV cache for 10000001 tokens" in failed(
        llm_inside("bench", "-m", tiny, "-d", 10**7, "-p", 1, "-n", 1), 1
    )


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["512"], [512]),
        (["1,2", "3"], [1, 2, 3]),
        (["1-4"], [1, 2, 3, 4]),
        (["0-1024+512"], [0, 512, 1024]),
        (["1-16*2"], [1, 2, 4, 8, 16]),
        (["1-15*2, 7"], [1, 2, 4, 8, 7]),
        (["5-5"], [5]),
    ],
)
def test_lists_as_llama_bench_writes_them(texts: list[str], found: list[int]) -> None:
    assert numbers(texts, "-p") == found


def test_a_list_has_an_end() -> None:
    assert len(numbers(["1-64"], "-p")) == 64
    with pytest.raises(typer.BadParameter):
        numbers(["1-60", "1-5"], "-p")


def test_names_of_tests() -> None:
    cases = [Case(512, 0, 0), Case(0, 128, 0), Case(0, 128, 64), Case(16, 4, 0), Case(0, 8, 5, 4)]
    assert [case.name for case in cases] == ["pp512", "tg128", "tg128 @ d64", "pp16+tg4", "tg8 @ d5 x4"]


class Counting:
    """A machine that only counts: (first position, rows, wanted rows) a step; and minds its state."""

    max_rows = 8
    max_logits = 8

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int]] = []
        self.states = SequenceStates([StateLayer((2,))])

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        self.states.begin(batch)
        self.states.end(batch)
        self.steps.append((int(batch.positions[0]), len(batch.tokens), len(batch.logits_indices)))
        assert table.lengths[0] == batch.positions[-1] + 1
        return np.zeros((len(batch.logits_indices), 16), np.float32)


def test_it_measures_what_it_says() -> None:
    """Chunks of prefill, single tokens of decode, after the depth, which is there once for all runs."""

    def steps(case: Case, repetitions: int, warm_up: bool = True) -> list[tuple[int, int, int]]:
        machine = Counting()
        assert len(measure(machine, PageTable(4), 16, case, repetitions, warm_up)) == repetitions
        return machine.steps

    assert steps(Case(10, 0, 5), 2) == [(0, 5, 1), *[(5, 8, 0), (13, 2, 1)] * 3]
    assert steps(Case(0, 2, 0), 1) == [(0, 1, 1), (1, 1, 1)] * 2
    assert steps(Case(0, 2, 3), 2, warm_up=False) == [(0, 3, 1), *[(3, 1, 1), (4, 1, 1)] * 2]
    assert steps(Case(3, 2, 0), 1, warm_up=False) == [(0, 3, 1), (3, 1, 1), (4, 1, 1)]
    assert len(steps(Case(0, 40, 0), 1)) == 16 + 40


class CountingRows(Counting):
    """(sequences, positions, rows with logits) of each step."""

    max_logits = 3

    def __init__(self) -> None:
        super().__init__()
        self.states = SequenceStates([StateLayer((2,))], 4)
        self.rows: list[tuple[list[int], list[int], list[int]]] = []

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        batch.check(table, 8, 16, self.max_rows, self.max_logits)
        self.states.begin(batch)
        self.states.end(batch)
        self.rows.append((batch.sequences.tolist(), batch.positions.tolist(), batch.logits_indices.tolist()))
        return np.zeros((len(batch.logits_indices), 16), np.float32)


def test_sequences_that_run_together() -> None:
    """Prompts one behind the other in full steps, with the logits of each prompt's end; then a row a sequence
    in each step, as many as there may be logits."""

    def rows(case: Case) -> list[tuple[list[int], list[int], list[int]]]:
        machine = CountingRows()
        measure(machine, PageTable(8, 4), 16, case, 1, warm_up=False)
        return machine.rows

    assert rows(Case(5, 0, 0, 3)) == [
        ([0, 0, 0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 4, 0, 1, 2], [4]),
        ([1, 1, 2, 2, 2, 2, 2], [3, 4, 0, 1, 2, 3, 4], [1, 6]),
    ]
    assert rows(Case(0, 2, 1, 4)) == [
        ([0, 1, 2], [0, 0, 0], [0, 1, 2]),
        ([3], [0], [0]),
        *[step for at in (1, 2) for step in (([0, 1, 2], [at] * 3, [0, 1, 2]), ([3], [at], [0]))],
    ]


@pytest.mark.usefixtures("quick")
def test_the_speed_of_sequences_is_that_of_all_together(llm_inside: Run, tiny: Path) -> None:
    flags = ("-p", 6, "-n", 3, "-r", 1, "-t", 1, "--no-cold", "--parallel", "1,3", "-o", "json")
    told = json.loads(llm_inside("bench", "-m", tiny, *flags).stdout)
    assert [(r["test"], r["n_parallel"]) for r in told] == [
        ("pp6", 1),
        ("pp6 x3", 3),
        ("tg3", 1),
        ("tg3 x3", 3),
    ]
    for result, tokens in zip(told, (6, 18, 3, 9), strict=True):
        assert result["avg_ts"] == pytest.approx(tokens / result["avg_ns"] * 1e9, rel=1e-3)
    assert told[3]["bytes_per_token"] < told[2]["bytes_per_token"]
    assert "--parallel" in failed(llm_inside("bench", "-m", tiny, "--parallel", 0), 2)


def test_bytes_of_a_token(tiny: Path) -> None:
    source = open_source(tiny)
    program = build_program(source.config, Weights(source.config, source.tensors))
    vocab, kv = source.config.vocab_size, HIDDEN // HEADS * KV_HEADS
    layer = 2 * HIDDEN * HIDDEN + 2 * kv * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN
    weights = 4 * (LAYERS * layer + vocab * HIDDEN + HIDDEN)  # with the output norm
    row, seen = 4 * HIDDEN, 2 * kv * LAYERS
    assert bytes_per_token(program, "f32", 1, 1) == weights + row + 4 * seen
    assert bytes_per_token(program, "f16", 11, 3) == weights + row + 2 * seen * 12
    assert bytes_per_token(program, "q8_0", 100, 1) == pytest.approx(weights + row + 34 / 32 * seen * 100)
    both = bytes_per_token(program, "q8_0/q4_0", 100, 1)
    assert both == pytest.approx(weights + row + (34 + 18) / 64 * seen * 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", "nemotron-h"])  # the latter's experts have no gate
def test_of_experts_those_that_are_chosen_are_read(conformance: Callable[[str], Path], name: str) -> None:
    source = open_source(conformance(name))
    program = build_program(source.config, Weights(source.config, source.tensors))

    def with_all(op: MoE) -> MoE:
        return replace(op, experts=replace(op.experts, width=len(op.up)))

    mixtures = [op for op in program.ops if isinstance(op, MoE)]
    unread = sum(
        sum(m.n_bytes for m in (*op.gate, *op.up, *op.down)) * (1 - op.experts.width / len(op.up))
        for op in mixtures
    )
    every = replace(program, ops=tuple(with_all(op) if isinstance(op, MoE) else op for op in program.ops))
    assert unread > 0
    assert bytes_per_token(every, "f32", 1, 1) - bytes_per_token(program, "f32", 1, 1) == pytest.approx(
        unread
    )


def test_a_window_bounds_what_is_read() -> None:
    assert mean_seen(1, 4, 0) == 2
    assert mean_seen(9, 13, 10) == (9 + 10 + 10 + 10) / 4


def test_compiling_is_told_apart_only_when_the_cache_grew(tmp_path: Path) -> None:
    def load(new: bool) -> LoadTimes:
        with LoadTimes(tmp_path) as times:
            times.stage("compiling kernels", 0, 2)
            time.sleep(0.03)
            times.stage("compiling kernels", 1, 2)
            time.sleep(0.03)
            times.stage("repacking weights", 1, 2)
            time.sleep(0.02)
            if new:
                (tmp_path / "kernel").touch()
        return times

    cached, compiled = load(new=False), load(new=True)
    assert cached.compile_seconds == 0
    assert cached.load_seconds >= 0.08
    assert 0.06 <= compiled.compile_seconds <= 0.06 + 0.5
    assert compiled.load_seconds >= 0.02


@pytest.mark.slow
def test_the_compiler_at_work_counts_without_a_stage(tmp_path: Path) -> None:
    import numba

    with LoadTimes(tmp_path) as times:
        numba.njit(lambda x: x + 1)(1)
        (tmp_path / "kernel").touch()
    assert times.compile_seconds > 0


# --- read bandwidth --------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_every_byte_is_read(threads: int) -> None:
    with bandwidth.ReadBandwidth(threads, n_bytes=3 << 20) as memory:
        assert memory.n_bytes == 3 << 20
        memory._buffer.view(np.int32)[:] = np.arange((3 << 20) // 4)
        assert memory.measure(runs=1) > 0
        parts = memory._buffer.view(np.int32).reshape(threads, -1)
        assert memory._arguments["sum"].tolist() == parts.sum(axis=1, dtype=np.int32).tolist()


def test_a_buffer_too_small_for_its_threads_grows() -> None:
    with bandwidth.ReadBandwidth(4, n_bytes=1) as memory:
        assert memory.n_bytes == 4 * bandwidth.READ_BLOCK
        assert memory.measure(runs=1) > 0


def test_the_buffer_is_larger_than_the_caches(tmp_path: Path) -> None:
    def buffer(*sizes: str) -> int:
        for i, size in enumerate(sizes):
            folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{i}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "size").write_text(size)
        return bandwidth.buffer_bytes(tmp_path)

    assert buffer() == 256 << 20
    assert buffer("48K\n", "2048K\n") == 256 << 20
    assert buffer("48K\n", "2048K\n", "107520K\n") == 8 * 107520 << 10
    assert buffer("48K\n", "2M\n", "99999M\n") == 2 << 30
    assert buffer("", "nonsense", "K") == 256 << 20
