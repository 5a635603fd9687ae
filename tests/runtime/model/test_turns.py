"""Turns: one model used from several threads, and in processes made by fork."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Generator

import pytest

from kukri.runtime.engine.errors import ModelClosed, StaleGeneration
from kukri.runtime.model import turns as turns_module
from kukri.runtime.model.turns import Turns

from ...tiny_model import write_tiny_model


def in_a_thread(function) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_a_generation_has_its_turn_until_it_ends():
    turns, log = Turns("tiny"), []

    def counting(name: str) -> Generator[int, None, None]:
        for i in range(3):
            log.append(name)
            yield i

    first = turns.steps(counting("a"))
    assert next(first) == 0
    other = in_a_thread(lambda: log.append(list(turns.steps(counting("b")))))
    call = in_a_thread(lambda: turns.call(lambda: log.append("call")))
    other.join(0.1)
    assert log == ["a"]
    assert list(first) == [1, 2]
    other.join(5)
    call.join(5)
    assert log[:3] == ["a"] * 3
    assert log[3:] in (["b", "b", "b", [0, 1, 2], "call"], ["call", "b", "b", "b", [0, 1, 2]])


@pytest.mark.parametrize("how", ["close", "forget", "fail"])
def test_a_generation_that_is_given_up_gives_its_turn_back(how):
    turns, done = Turns("tiny"), threading.Event()

    def failing() -> Generator[int, None, None]:
        yield 1
        raise ArithmeticError

    first = turns.steps(failing())
    next(first)
    thread = in_a_thread(lambda: turns.call(done.set))
    assert not done.wait(0.1)
    if how == "close":
        first.close()
    elif how == "forget":
        del first
        gc.collect()
    else:
        with pytest.raises(ArithmeticError):
            next(first)
    assert done.wait(5)
    thread.join(5)


def test_the_same_thread_takes_its_own_turn_over():
    turns = Turns("tiny")
    first = turns.steps(i for i in range(5))
    next(first)
    assert turns.call(lambda: 7) == 7
    with pytest.raises(StaleGeneration):
        next(first)


def test_a_generation_that_stands_still_loses_its_turn(monkeypatch):
    monkeypatch.setattr(turns_module, "MOST_IDLE_SECONDS", 0.2)
    turns, done = Turns("tiny"), threading.Event()
    first = turns.steps(i for i in range(5))
    next(first)
    in_a_thread(lambda: turns.call(done.set)).join(5)
    assert done.is_set()
    with pytest.raises(StaleGeneration):
        next(first)


def test_closing_waits_for_the_step_that_is_running():
    turns, inside, may_end, log = Turns("tiny"), threading.Event(), threading.Event(), []

    def slow() -> None:
        inside.set()
        may_end.wait(5)
        log.append("step")

    stepping = in_a_thread(lambda: turns.call(slow))
    inside.wait(5)
    closing = in_a_thread(lambda: turns.close(lambda: log.append("close")))
    closing.join(0.1)
    assert log == []
    may_end.set()
    stepping.join(5)
    closing.join(5)
    assert log == ["step", "close"]
    with pytest.raises(ModelClosed, match="tiny is closed"):
        turns.call(lambda: None)


STRESS = """
import random, sys, threading
import kukri

model = kukri.load(sys.argv[1], device="cpu", context=256, threads=2)
params = kukri.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
prompts = [[1 + i, 2 + i, 3 + i] * (3 + 5 * i) for i in range(6)]
expected = [list(model.generate(prompt, params)) for prompt in prompts]
logits = model.logits(prompts[0])
wrong = []

def work(seed):
    draw = random.Random(seed)
    for _ in range(8):
        i = draw.randrange(len(prompts))
        kind = draw.randrange(4)
        if kind == 0:
            if (model.logits(prompts[0]) != logits).any():
                wrong.append("logits")
        elif kind == 1:
            stream = model.generate(prompts[i], params)
            got = [next(stream), next(stream)]
            stream.close()
            if got != expected[i][:2]:
                wrong.append(got)
        else:
            model.tokenizer.decode(model.encode("some text, " * 300))
            got = list(model.generate(prompts[i], params))
            if got != expected[i]:
                wrong.append(got)

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(wrong), wrong[:1])
last = model.generate(prompts[0], params)
next(last)
closer = threading.Thread(target=model.close)
closer.start()
closer.join()
try:
    list(last)
    print("went on")
except kukri.ModelClosed:
    print("closed")
"""


@pytest.mark.slow
def test_threads_never_crash_and_never_mix_answers(tmp_path):
    path = write_tiny_model(tmp_path / "tiny.gguf")
    for _ in range(20):
        done = subprocess.run(
            [sys.executable, "-c", STRESS, str(path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "0 []\nclosed\n"), done.stderr


FORK = """
import os, sys, threading
import kukri

model = kukri.load(sys.argv[1], device=sys.argv[2], context=256)
stream = model.generate([1, 2, 3], temperature=0, max_tokens=5, ignore_eos=True)
first = next(stream)
held = threading.Event()
if sys.argv[3] == "busy":  # another thread is in the middle of a step when the process is forked
    def step():
        held.set()
        threading.Event().wait()
    threading.Thread(target=lambda: model._turns.call(step), daemon=True).start()
    stream.close()
    held.wait()
child = os.fork()
if child == 0:
    code = 0
    for call in (lambda: next(stream), lambda: model.logits([1, 2]), lambda: list(model.generate([1]))):
        try:
            call()
        except kukri.ModelClosed as error:
            code += "forked" in str(error)
        except StopIteration:
            code += sys.argv[3] == "busy"
    model.close()
    os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if sys.argv[3] == "idle":
    print(1 + len(list(stream)))
    model.close()
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_fork_is_noticed_and_refused(tmp_path, device, state):
    path = write_tiny_model(tmp_path / "tiny.gguf")
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(path), device, state],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "3\n5\n" if state == "idle" else "3\n"), done.stderr
