"""The CPU machine against the reference machine: every op, every buffer, batches of several sequences."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.jit import levels
from kukri.runtime import ops
from kukri.runtime.cpu.abi.sizes import FEW_ROWS, PAGE_MULTIPLE
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.reference.machine import ReferenceMachine

from .programs import VOCAB, agree, batches_of_sequences, program, run


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
from programs import program, run
from kukri.runtime.cpu.machine import CpuMachine
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


LOWER_LEVELS = [level for level in levels.supported_levels() if level != levels.CHOSEN_LEVEL]
FORCED = "KUKRI_SIMD" in os.environ  # such a run is itself one of the subprocesses below


@pytest.mark.slow
@pytest.mark.parametrize("level", [] if FORCED else LOWER_LEVELS)
def test_lower_levels_pass_the_same_tests(level, tmp_path):
    """The kernel tests once more at every level below the best that this CPU can run."""
    here = Path(__file__)
    files = [
        here,
        here.parent / "test_team.py",
        here.parent / "test_matmul.py",
        here.parent / "simd" / "test_simd.py",
    ]
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
