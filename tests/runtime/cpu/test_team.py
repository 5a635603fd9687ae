"""The CPU machine's threads: what they read ahead, when they sleep and end, and interrupts at any moment."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import threading
import weakref

import numpy as np
import pytest

from kukri.runtime.cpu.abi.records import MATMUL
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.cpu.processors import default_threads
from kukri.runtime.engine.cache import Batch, PageTable

from .programs import VOCAB, program, run


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
