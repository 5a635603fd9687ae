"""The CPU machine against the reference machine: every op, every buffer, batches of several sequences."""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.formats import FORMATS
from kukri.quant.jit import levels
from kukri.quant.rounding.encode import encode
from kukri.runtime import ops
from kukri.runtime.cpu.abi.records import MATMUL
from kukri.runtime.cpu.abi.sizes import FEW_ROWS, PAGE_MULTIPLE
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.cpu.processors import default_threads
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.reference.machine import ReferenceMachine

VOCAB = 50


def matrix(rng: np.random.Generator, rows: int, width: int, kind: str) -> QTensor:
    values = (rng.normal(size=(rows, width)) / np.sqrt(width)).astype(np.float32)
    if kind == "F32":
        return QTensor("w", FORMATS[kind], values.shape, values.view(np.uint8))
    form = FORMATS[kind]
    if kind == "NVFP4":
        factor = float(np.float32(np.abs(values).max() / 2688))
        return QTensor("w", form, values.shape, encode(values / np.float32(factor), form), (factor,))
    assert form.quantize is not None
    blocks = form.quantize(values.reshape(-1, form.block_size))
    return QTensor("w", form, values.shape, blocks.reshape(rows, -1))


def program(
    seed: int,
    kind: str = "F32",
    head_dim: int = 32,
    heads: int = 6,
    kv_heads: int = 2,
    window: int = 0,
    softcap: float = 0.0,
    interleaved: bool = False,
    activation: str = "silu",
    ffn: int = 96,
) -> ops.Program:
    """Two layers with every op there is: q/k norms, biases, partial RoPE, post-norms, soft-caps."""
    rng = np.random.default_rng(seed)
    hidden = 64
    b = {
        name: ops.Buffer(name, width)
        for name, width in {
            "x": hidden,
            "h": hidden,
            "q": heads * head_dim,
            "k": kv_heads * head_dim,
            "v": kv_heads * head_dim,
            "a": heads * head_dim,
            "gate": ffn,
            "up": ffn,
        }.items()
    }
    last, logits = ops.Buffer("last", hidden, logits_rows=True), ops.Buffer("logits", VOCAB, logits_rows=True)

    def vector(n: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, n).astype(np.float32)

    def linear(x: str, out: str, bias: bool = False, accumulate: bool = False) -> ops.MatMul:
        weight = matrix(rng, b[out].width, b[x].width, kind)
        return ops.MatMul(b[x], b[out], weight, vector(b[out].width) if bias else None, accumulate)

    embedding = matrix(rng, VOCAB, hidden, kind)
    inv_freq = (10000.0 ** -np.linspace(0, 1, head_dim // 4)).astype(np.float32)
    flow: list[ops.Op] = [ops.Embed(b["x"], embedding, scale=3.0)]
    for layer in range(2):
        flow += [
            ops.RMSNorm(b["x"], b["h"], vector(hidden), 1e-3),
            linear("h", "q", bias=True),
            linear("h", "k"),
            linear("h", "v", bias=True),
            ops.RMSNorm(b["q"], b["q"], vector(head_dim), 1e-6, groups=heads),
            ops.RoPE(b["q"], heads, inv_freq, interleaved, 1.1),
            ops.RoPE(b["k"], kv_heads, inv_freq, interleaved, 1.1),
            ops.Attend(
                *(b["q"], b["k"], b["v"], b["a"]),
                layer=layer,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                window=window if layer == 0 else 0,
                softcap=softcap,
            ),
            linear("a", "x", accumulate=True),
            ops.RMSNorm(b["x"], b["h"], vector(hidden), 1e-3),
            linear("h", "gate"),
            linear("h", "up"),
            ops.GatedActivation(b["gate"], b["up"], b["gate"], activation),
            linear("gate", "h"),
            ops.RMSNorm(b["h"], b["h"], vector(hidden), 1e-3),
            ops.Add(b["h"], b["x"]),
        ]
    flow += [
        ops.SelectRows(b["x"], last),
        ops.RMSNorm(last, last, vector(hidden), 1e-3),
        ops.MatMul(last, logits, embedding),
        ops.SoftCap(logits, 5.0),
    ]
    cache = (ops.CacheLayer(kv_heads, head_dim),) * 2
    return ops.Program(tuple(flow), (*b.values(), last, logits), cache, logits)


def batches_of_sequences(rng: np.random.Generator, lengths: list[int]) -> list[list[tuple[int, int]]]:
    """Cut several sequences into chunks of 1-20 tokens and spread them over steps: [(sequence, n), …]."""
    left = dict(enumerate(lengths))
    steps = []
    while any(left.values()):
        step = []
        for sequence, n in left.items():
            if n and (take := min(n, int(rng.integers(0, 21)))):
                step.append((sequence, take))
                left[sequence] -= take
        if step:
            steps.append(step)
    return steps


def run(
    machine, steps, seed: int, page_size: int, want_all: bool = True, logits_indices=None, n_pages: int = 40
) -> list[np.ndarray]:
    """Feed the steps; the logits of each."""
    rng = np.random.default_rng(seed)
    table = PageTable(n_pages, max_sequences=4, page_size=page_size)
    logits = []
    for step in steps:
        sequences = np.concatenate([np.full(n, s, np.int32) for s, n in step])
        positions = np.concatenate(
            [np.arange(table.lengths[s], table.lengths[s] + n, dtype=np.int32) for s, n in step]
        )
        for s, n in step:
            table.extend(s, n)
        tokens = rng.integers(0, VOCAB, len(sequences)).astype(np.int32)
        rows = np.arange(len(sequences), dtype=np.int32)
        if not want_all:
            rows = rows[rng.random(len(rows)) < 0.3]
        if logits_indices is not None:
            rows = np.array(logits_indices, np.int32)
        logits.append(machine.step(Batch(tokens, sequences, positions, rows), table).copy())
    return logits


def agree(got: list[np.ndarray], expected: list[np.ndarray], atol: float) -> None:
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("activation", "interleaved", "threads", "n"),
    [  # each value beside each of every other kind at least once
        ("silu", False, 1, 2),
        ("silu", True, 3, FEW_ROWS),
        ("silu", False, 3, FEW_ROWS + 1),
        ("gelu_tanh", True, 3, 2),
        ("gelu_tanh", False, 1, FEW_ROWS),
        ("gelu_tanh", True, 1, FEW_ROWS + 1),
        ("gelu", False, 3, 2),
        ("gelu", True, 1, FEW_ROWS),
        ("gelu", True, 3, FEW_ROWS + 1),
    ],
)
def test_every_buffer_after_every_op(activation, interleaved, threads, n):
    whole = program(1, activation=activation, interleaved=interleaved, window=5, softcap=2.0)
    rng = np.random.default_rng(0)
    tokens, positions = rng.integers(0, VOCAB, n).astype(np.int32), np.arange(n, dtype=np.int32)
    batch = Batch(tokens, np.zeros(n, np.int32), positions, np.unique([0, n // 3, n - 1]).astype(np.int32))

    def table() -> PageTable:
        fresh = PageTable(2)
        fresh.extend(0, n)
        return fresh

    reference = ReferenceMachine(whole, 2)
    for i, op in enumerate(reference.trace(batch, table())):
        name = op.x.name if isinstance(op, ops.RoPE | ops.SoftCap) else op.out.name
        expected = reference.buffers[name]
        if i == 0:
            continue
        machine = CpuMachine(dataclasses.replace(whole, ops=whole.ops[: i + 1]), 2, threads=threads)
        machine.step(batch, table())
        got = machine._lowered.arena.floats(name)[: len(expected), : expected.shape[1]]
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5, err_msg=f"{i} {op}"[:80])
        machine.close()


@pytest.mark.parametrize("page_size", [64, 128])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 1},
        {"window": 16},
        {"window": 70, "softcap": 3.0},
        {"head_dim": 64, "heads": 9, "kv_heads": 3},
        {"head_dim": 20, "heads": 2, "kv_heads": 1},
        {"head_dim": 128, "heads": 2, "kv_heads": 2},
    ],
    ids=str,
)
def test_several_sequences_in_one_step(options, page_size):
    whole = program(2, **options)
    steps = batches_of_sequences(np.random.default_rng(4), [150, 3, 77, 64])
    machine = CpuMachine(whole, 40, page_size, threads=2)
    expected = run(ReferenceMachine(whole, 40, page_size), steps, 5, page_size)
    agree(run(machine, steps, 5, page_size), expected, 3e-5)
    machine.close()


# Steps of sequences 0 … 3: tokens of each. Decode rows of several sequences, chunks of prompts beside them,
# consecutive rows of one sequence, as many rows as threads and fewer, and one row too many.
FEW = [
    [(0, 90), (1, 3), (2, 64)],
    [(0, 1), (1, 1)],
    [(0, 1), (1, 1), (2, 1)],
    [(2, 1), (0, 1), (3, 1), (1, 1)],
    [(0, 4)],
    [(1, 1), (2, 5), (0, 1)],
    [(3, 12), (0, 1), (1, 1), (2, 1)],
    [(1, FEW_ROWS)],
    [(0, 2), (1, 2), (2, 2), (3, 2)],
    [(3, FEW_ROWS + 1)],
    [(0, 1), (3, 1)],
]


@pytest.mark.parametrize("wanted", ["all", "some", "none"])
@pytest.mark.parametrize(
    "options", [{}, {"window": 16, "softcap": 3.0}, {"head_dim": 64, "heads": 9, "kv_heads": 3}]
)
def test_few_rows(options, wanted):
    whole = program(13, **options)
    machine = CpuMachine(whole, 40, threads=3)
    for steps in (FEW, FEW[1:]):
        chosen = {"want_all": wanted == "all", "logits_indices": [] if wanted == "none" else None}
        got = run(machine, steps, 5, 64, **chosen)
        agree(got, run(ReferenceMachine(whole, 40), steps, 5, 64, **chosen), 3e-5)
    machine.close()


@pytest.mark.parametrize("kind", ["Q8_0", pytest.param("Q4_1", marks=pytest.mark.slow)])
def test_a_row_does_not_depend_on_the_rows_beside_it(kind):
    """Of several sequences at once, one row each, every row is what it is alone, up to rounding; so is every
    row of a sequence that gets several at once."""
    whole = program(14, kind=kind)
    lengths = (5, 40, 70)
    machines = [CpuMachine(whole, 40, threads=2, kv_type="f32") for _ in range(2)]
    logits = []
    for machine, together in zip(machines, (True, False), strict=True):
        rng = np.random.default_rng(3)
        table = PageTable(40, max_sequences=4)
        rows = []

        def step(parts, machine=machine, rng=rng, table=table, rows=rows):
            tokens = [rng.integers(0, VOCAB, n).astype(np.int32) for _, n in parts]
            sequences = [np.full(n, s, np.int32) for s, n in parts]
            positions = [table.lengths[s] + np.arange(n, dtype=np.int32) for s, n in parts]
            for s, n in parts:
                table.extend(s, n)
            arrays = (np.concatenate(part).astype(np.int32) for part in (tokens, sequences, positions))
            n = sum(n for _, n in parts)
            rows.append(machine.step(Batch(*arrays, np.arange(n, dtype=np.int32)), table).copy())

        for s, n in enumerate(lengths):
            step([(s, n)])
        rows.clear()
        for _ in range(6):
            for parts in [[(0, 1), (1, 1), (2, 1)]] if together else [[(s, 1)] for s in range(3)]:
                step(parts)
        for parts in [[(1, 5)]] if together else [[(1, 1)]] * 5:
            step(parts)
        logits.append(np.concatenate(rows))
        machine.close()
    assert np.abs(logits[0] - logits[1]).mean() < 0.01 * logits[1].std()


def test_the_list_for_few_rows_is_made_when_it_is_needed():
    """A warm start of one sequence loads no kernel for few rows."""
    whole = program(15, kind="Q8_0")
    CpuMachine(whole, 2).close()  # its kernels are in the cache now
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_machine import CpuMachine, program, run
from kukri.runtime.cpu.kernels import MERGE_ROWS
machine = CpuMachine(program(15, kind="Q8_0"), 2)
def loaded():
    return "compiled" in MERGE_ROWS.__dict__
run(machine, [[(0, {FEW_ROWS + 1})], [(0, 1)]], 1, 64, n_pages=2)
assert not loaded()
run(machine, [[(0, 2)]], 1, 64, n_pages=2)
assert loaded()
assert "numba" not in sys.modules  # they were compiled when the others were
machine.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_waiting_threads_prefetch_what_they_multiply_next():
    """At each barrier of a decode step, the beginning of each thread's part of the next product's matrix."""
    machine = CpuMachine(program(2, "Q8_0"), n_pages=1, threads=3)
    steps = machine._lowered.decode
    products = [i for i, name in enumerate(steps.names) if "GEMVS" in name]
    for i, instruction in enumerate(steps.instructions):
        if not instruction["barrier"]:
            assert instruction["ahead"] == 0
            continue
        following = next((j for j in products if j > i), products[0])
        arguments = steps.instructions[following]["arguments"]
        fields = np.ctypeslib.as_array((ctypes.c_byte * MATMUL.itemsize).from_address(int(arguments)))
        a = fields.view(MATMUL)[0]
        runs = np.ctypeslib.as_array((ctypes.c_int64 * 12).from_address(int(instruction["ahead"])))
        runs = runs.reshape(3, 2, 2)
        size = a["pair_stride"] if a["gate"] else a["panel_bytes"]
        first = a["n_panels"] * np.arange(4) // 3
        np.testing.assert_array_equal(runs[:, 0, 0], a["weights"] + first[:3] * size)
        np.testing.assert_array_equal(runs[:, 0, 1], a["weights"] + first[1:] * size)
        if a["gate"]:
            np.testing.assert_array_equal(runs[:, 1], runs[:, 0] + a["second_offset"])
    assert steps.instructions["barrier"].sum() > 5
    machine.close()


def test_a_row_is_that_of_its_own_step_whatever_ran_in_between():
    """A step of one row leaves most of its inputs for the next such step."""
    net = program(5)
    machine, table = CpuMachine(net, 4, max_sequences=2), PageTable(4, 2)
    reference, other = ReferenceMachine(net, 4), PageTable(4, 2)
    last, x = next(
        (i, op.x) for i, op in enumerate(net.ops) if isinstance(op, ops.MatMul) and op.out == net.logits
    )

    def step(*rows: tuple[int, int, int], n_logits: int = 1) -> None:
        for sequence in {row[1] for row in rows}:
            for pages in (table, other):
                pages.extend(sequence, sum(row[1] == sequence for row in rows))
        tokens, sequences, positions = (np.array(part, np.int32) for part in zip(*rows, strict=True))
        batch = Batch(tokens, sequences, positions, np.arange(len(rows), dtype=np.int32)[:n_logits])
        got, expected = machine.step(batch, table), reference.step(batch, other)
        np.testing.assert_allclose(got, expected, atol=1e-4)

    step((7, 0, 0))
    step((8, 0, 1))
    step((9, 0, 2), n_logits=0)
    step((10, 0, 3))
    step((11, 1, 0), (12, 1, 1), n_logits=1)
    step((13, 0, 4))
    behind = machine.finish(last, {x: np.ones((3, 64), np.float32)})
    assert behind.shape == (3, VOCAB)
    step((14, 1, 2))
    table, other = PageTable(4, 2), PageTable(4, 2)  # for the same sequences in other pages
    step((1, 1, 0))
    step((2, 0, 0))
    step((3, 0, 1))
    machine.close()


def test_only_some_rows_wanted():
    whole = program(3)
    steps = batches_of_sequences(np.random.default_rng(1), [40, 30])
    machine = CpuMachine(whole, 40)
    got = run(machine, steps, 6, 64, want_all=False)
    agree(got, run(ReferenceMachine(whole, 40), steps, 6, 64, want_all=False), 3e-5)
    none = run(machine, [[(0, 3)]], 6, 64, logits_indices=[])
    assert none[0].shape == (0, VOCAB)
    machine.close()


@pytest.mark.parametrize(
    "kind", ["Q8_0", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("Q4_0", "Q5_1", "NVFP4"))]
)
def test_quantised_weights(kind):
    """INT8 activations cost a little; not more than that."""
    whole = program(4, kind=kind, ffn=128 if kind == "NVFP4" else 96)
    steps = batches_of_sequences(np.random.default_rng(2), [60])
    machine = CpuMachine(whole, 40, threads=2)
    got = np.concatenate(run(machine, steps, 7, 64))
    expected = np.concatenate(run(ReferenceMachine(whole, 40), steps, 7, 64))
    assert np.abs(got - expected).mean() < 0.02 * expected.std()
    machine.close()


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_results_do_not_depend_on_threads_or_chunks(kind):
    whole = program(5, kind=kind, window=9)
    chunks = [[(0, 64)]], [[(0, 1)]] * 64, [[(0, 30)], [(0, 1)], [(0, 33)]]
    results = []
    for threads in (1, 2, 5):
        for steps in chunks:
            machine = CpuMachine(whole, 40, threads=threads)
            rng = np.random.default_rng(9)
            ids, table, rows = rng.integers(0, VOCAB, 64).astype(np.int32), PageTable(2), []
            for ((_, n),) in steps:
                at = int(table.lengths[0])
                table.extend(0, n)
                every = np.arange(n, dtype=np.int32)
                batch = Batch(ids[at : at + n], 0 * every, at + every, every)
                rows.append(machine.step(batch, table).copy())
            results.append(np.concatenate(rows))
            machine.close()
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, results[i % len(chunks)])  # whatever the threads
        # A single token is added up in another order than a tile of tokens; where numbers are rounded to few
        # bits, such a difference may send one to its neighbour.
        if kind == "F32":
            np.testing.assert_allclose(result, results[0], rtol=0, atol=1e-5)
        else:
            assert np.abs(result - results[0]).mean() < 0.01 * results[0].std()


def test_fp16_cache_rounds_and_no_more():
    whole = program(6)
    steps = batches_of_sequences(np.random.default_rng(3), [100])
    expected = np.concatenate(run(ReferenceMachine(whole, 40), steps, 8, 64))
    error = {}
    for kv_type in ("f16", "f32", "auto"):
        machine = CpuMachine(whole, 40, kv_type=kv_type)
        error[kv_type] = np.abs(np.concatenate(run(machine, steps, 8, 64)) - expected).max()
        machine.close()
    assert error["auto"] == error["f32"] < 3e-5 < error["f16"] < 2e-2


def test_batches_out_of_range_are_refused():
    machine = CpuMachine(program(7), 2, max_rows=8)
    table = PageTable(2)
    table.extend(0, 4)

    def step(tokens=(1,), sequences=(0,), positions=(0,), logits_indices=(0,)):
        machine.step(
            Batch(*(np.array(a, np.int32) for a in (tokens, sequences, positions, logits_indices))), table
        )

    step()
    for bad in (
        {"tokens": (VOCAB,)},
        {"tokens": (-1,)},
        {"sequences": (1,)},
        {"sequences": (-1,)},
        {"positions": (4,)},
        {"positions": (-1,)},
        {"logits_indices": (1,)},
        {"logits_indices": (-1,)},
        {"logits_indices": (0, 1)},
        {"tokens": (1, 2)},
        {"tokens": (1,) * 9, "sequences": (0,) * 9, "positions": (0,) * 9},
    ):
        with pytest.raises(ValueError, match=r"range|rows"):
            step(**bad)
    with pytest.raises(ValueError, match="hands out 3 pages"):
        machine.step(Batch(*(np.zeros(1, np.int32),) * 4), PageTable(3))
    nothing = Batch(*(np.zeros(0, np.int32),) * 4)
    with pytest.raises(ValueError, match="pages of 32"):
        machine.step(nothing, PageTable(2, page_size=32))
    with pytest.raises(ValueError, match="multiple of"):
        CpuMachine(program(7), 2, page_size=PAGE_MULTIPLE // 2)
    with pytest.raises(ValueError, match="q9"):
        CpuMachine(program(7), 2, kv_type="q9")
    machine.close()


def test_release_is_told_of_every_byte_once(monkeypatch):
    """Also in small parts; and parts give the same panels as the whole."""
    whole = program(8)
    results = []
    for part_bytes in (1 << 30, 1):
        monkeypatch.setattr("kukri.runtime.cpu.lowering.lower.REPACK_BYTES", part_bytes)
        released: list[QTensor] = []
        machine = CpuMachine(whole, 40, release=released.append)
        results.append(run(machine, [[(0, 9)]], 1, 64)[0])
        machine.close()
        weights = {id(op.weight): op.weight for op in whole.ops if isinstance(op, ops.MatMul)}
        assert sum(part.n_bytes for part in released) == sum(w.n_bytes for w in weights.values())
        assert len({part.data.ctypes.data for part in released}) == len(released) >= len(weights)
    np.testing.assert_array_equal(*results)


def test_threads_sleep_between_steps_and_end():
    before = set(threading.enumerate())
    machine = CpuMachine(program(9), 2, threads=4)
    workers = set(threading.enumerate()) - before
    assert len(workers) == 3
    run(machine, [[(0, 5)]], 1, 64, n_pages=2)
    start = os.times()
    threading.Event().wait(0.5)
    end = os.times()
    assert end.user + end.system - start.user - start.system < 0.25
    machine.close()
    for worker in workers:
        worker.join(timeout=5)
        assert not worker.is_alive()
    assert 1 <= default_threads() <= (os.cpu_count() or 1)


def test_a_closed_or_forgotten_machine_has_no_threads_and_no_memory():
    before = set(threading.enumerate())
    machine = CpuMachine(program(11), 2, threads=3)
    run(machine, [[(0, 2)]], 1, 64, n_pages=2)
    logits = weakref.ref(machine._lowered.arena.floats("logits").base)
    machine.close()
    machine.close()
    with pytest.raises(RuntimeError, match="closed"):
        run(machine, [[(0, 2)]], 1, 64, n_pages=2)
    gc.collect()
    assert logits() is None

    forgotten = CpuMachine(program(11), 2, threads=3)
    del forgotten
    gc.collect()
    for worker in set(threading.enumerate()) - before:
        worker.join(timeout=5)
        assert not worker.is_alive()


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_nan_never_becomes_a_number(kind):
    """A weight that is NaN shows in the logits of the rows that it touches, as on the reference."""
    whole = program(12, kind=kind)
    poisoned = []
    for op in whole.ops:
        if isinstance(op, ops.MatMul) and op.out.name == "up":
            data = op.weight.data.copy()
            data[3, :4] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)
            if kind == "Q8_0":
                data[3, :2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
            op = dataclasses.replace(op, weight=dataclasses.replace(op.weight, data=data))
        poisoned.append(op)
    broken = dataclasses.replace(whole, ops=tuple(poisoned))
    machine = CpuMachine(broken, 40)
    with np.errstate(invalid="ignore"):
        expected = run(ReferenceMachine(broken, 40), [[(0, 5)]], 1, 64)[0]
    assert np.isnan(expected).all()
    assert np.isnan(run(machine, [[(0, 5)]], 1, 64)[0]).all()
    machine.close()


def test_threads_by_default(tmp_path):
    """A container's quota counts, in either version of control groups; none means all processors."""
    usable = default_threads(tmp_path)
    group = tmp_path / "sys/fs/cgroup"
    (group / "cpu").mkdir(parents=True)
    for quota, threads in (("max 100000", usable), ("100000 100000", 1), ("50000 100000", 1), ("x", usable)):
        (group / "cpu.max").write_text(quota)
        assert default_threads(tmp_path) == threads
    (group / "cpu.max").unlink()
    (group / "cpu/cpu.cfs_period_us").write_text("100000\n")
    for quota, threads in (("-1\n", usable), ("100000\n", 1), ("100000000\n", usable)):
        (group / "cpu/cpu.cfs_quota_us").write_text(quota)
        assert default_threads(tmp_path) == threads


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("limited", ["", "system.slice", "system.slice/llm.service"])
def test_threads_within_the_quota_of_a_group_further_up(tmp_path, monkeypatch, version, limited):
    """Of a service (systemd's CPUQuota) or a job, which sees the whole tree: the least one counts."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    tree = tmp_path / "sys/fs/cgroup" / ("cpu" if version == 1 else "")
    (tree / "system.slice/llm.service").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    controllers = "cpu,cpuacct" if version == 1 else ""
    line = f"3:{controllers}:/system.slice/llm.service\n"
    (tmp_path / "proc/self/cgroup").write_text("5:memory:/system.slice\n" + line)
    assert default_threads(tmp_path) == 8
    for group, quota in ((limited, "350000"), ("system.slice/llm.service", "600000")):
        path = tree / group / ("cpu.cfs_quota_us" if version == 1 else "cpu.max")
        if not path.exists():
            path.write_text(quota + "\n" if version == 1 else quota + " 100000\n")
            path.with_name("cpu.cfs_period_us").write_text("100000\n")
    assert default_threads(tmp_path) == 3


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that interrupts")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised in a callback
def test_interrupts_at_any_moment_leave_the_team_whole():
    """KeyboardInterrupt before, while and after the workers are woken: no step hangs, none is wrong."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    machine = CpuMachine(program(10), 2, threads=3)
    expected = run(machine, [[(0, 3)]], 1, 64, n_pages=2)[0]
    caught = 0
    faulthandler.dump_traceback_later(100, exit=True)  # a hang must not stop the whole suite
    previous = signal.signal(signal.SIGALRM, interrupt)
    table = PageTable(2)
    table.extend(0, 3)
    rng = np.random.default_rng(1)
    every = np.arange(3, dtype=np.int32)
    batch = Batch(rng.integers(0, VOCAB, 3).astype(np.int32), 0 * every, every, every)
    try:
        for i in range(500):
            try:
                signal.setitimer(signal.ITIMER_REAL, (1 + i % 97) * 4e-6)
                machine.step(batch, table)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    np.testing.assert_array_equal(machine.step(batch, table), expected)
    faulthandler.cancel_dump_traceback_later()
    assert caught > 10
    machine.close()


LOWER_LEVELS = [level for level in levels.supported_levels() if level != levels.CHOSEN_LEVEL]
FORCED = "KUKRI_SIMD" in os.environ  # such a run is itself one of the subprocesses below


@pytest.mark.slow
@pytest.mark.parametrize("level", [] if FORCED else LOWER_LEVELS)
def test_lower_levels_pass_the_same_tests(level, tmp_path):
    """The kernel tests once more at every level below the best that this CPU can run."""
    here = Path(__file__)
    files = [here, here.parent / "test_matmul.py", here.parent / "simd" / "test_simd.py"]
    environment = {**os.environ, "KUKRI_SIMD": level}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, files)],
        env=environment,
        cwd=here.parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:]
