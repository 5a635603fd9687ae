"""Random requests from many threads: whatever runs beside one, its answer is that of a run by itself."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.errors import QueueFull
from kukri.runtime.engine.sampling.beam_search import Beam, BeamParams
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.ops import Program
from kukri.tests.open_program import open_program

CONTEXT = 160
MOST_NEW = 14
PRIORITIES = (0, 0, 0, 1, -1)
LEAST_GAP = (
    2e-3  # between the two largest logits of all steps of a greedy answer, so that rounding cannot matter
)
SAME_SCORE = 2e-3  # scores of two answers of a beam search that rounding may exchange


@dataclass(frozen=True)
class Case:
    """A request, and its answer in a run by itself."""

    prompt: list[int]
    params: SamplingParams
    answer: list[int]


@dataclass(frozen=True)
class BeamCase:
    """A beam search, and its answers in a run by itself."""

    prompt: list[int]
    beams: BeamParams
    params: SamplingParams
    answers: list[Beam]


@dataclass
class Cases:
    """What the threads choose from."""

    greedy: list[Case] = field(default_factory=list)
    sampled: list[Case] = field(default_factory=list)
    beams: list[BeamCase] = field(default_factory=list)


@dataclass
class Findings:
    """What happened: numbers by kind of request, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed_at: float = field(default_factory=time.monotonic)

    def count(self, kind: str) -> None:
        """Note that a request has ended."""
        with self.lock:
            self.counts[kind] += 1
            self.changed_at = time.monotonic()

    def problem(self, text: str) -> None:
        """Note what is wrong."""
        with self.lock:
            self.wrong.append(text)


def program_of(folder: Path) -> tuple[Program, Any]:
    """The program of a conformance fixture, and its config."""
    config, program = open_program(folder)
    return program, config


def new_engine(
    program: Program, config: Any, kind: Callable[..., Any], pages: int, slots: int, **more: Any
) -> Engine:
    """An engine for a program on a machine of a kind."""
    machine = kind(program, pages, max_sequences=slots)
    table = PageTable(pages, slots)
    return Engine(machine, table, config, context=CONTEXT, states=machine.states, prefill_chunk=48, **more)


def some_prompt(draw: random.Random, ids: list[int]) -> list[int]:
    """Ids of which many begin alike, and some repeat themselves, so that drafts are right."""
    shared = ids[: draw.choice([0, 0, 10, 70, 90])]
    own = [draw.choice(ids) for _ in range(draw.randrange(1, 24))]
    return [*shared, *own * draw.choice([1, 1, 2])][: CONTEXT - MOST_NEW]


def make_cases(alone: Engine, ids: list[int], n: int, seed: int) -> Cases:
    """`n` greedy cases, and fewer of the others, with their answers on an engine that does one at a time."""
    draw, cases = random.Random(seed), Cases()
    greedy = SamplingParams(temperature=0, max_tokens=MOST_NEW, ignore_eos=True, logprobs=2)
    while len(cases.greedy) < n:
        prompt = some_prompt(draw, ids)
        generation = alone.submit(prompt, greedy)
        answer = list(generation)
        gaps = [entry.top[0][1] - entry.top[1][1] for entry in generation.logprobs]
        if min(gaps) > LEAST_GAP:
            params = SamplingParams(temperature=0, max_tokens=MOST_NEW, ignore_eos=True)
            cases.greedy.append(Case(prompt, params, answer))
    for number in range(n // 3):
        prompt = some_prompt(draw, ids)
        params = SamplingParams(seed=number, max_tokens=MOST_NEW, temperature=1.0, repeat_penalty=1.1)
        cases.sampled.append(Case(prompt, params, list(alone.submit(prompt, params))))
    for _ in range(n // 4):
        prompt = some_prompt(draw, ids)
        beams = BeamParams(
            draw.choice([2, 3, 5]), draw.choice([0.0, 1.0]), draw.choice([True, False, "never"])
        )
        params = SamplingParams(max_tokens=draw.randrange(2, 9))
        cases.beams.append(
            BeamCase(prompt, beams, params, alone.submit_beams(prompt, beams, params).result())
        )
    return cases


class Client:
    """One thread that submits requests, reads and cancels them at random."""

    def __init__(self, engine: Engine, cases: Cases, findings: Findings, seed: int) -> None:
        self.engine = engine
        self.cases = cases
        self.findings = findings
        self.draw = random.Random(seed)

    def work(self, count: int) -> None:
        """Run `count` requests; what goes wrong is among the findings."""
        try:
            done = 0
            while done < count:
                if self.draw.random() < 0.1:
                    n = min(5, count - done)
                    asyncio.run(self._several(n))
                    done += n
                else:
                    self._one()
                    done += 1
        except BaseException as problem:  # noqa: BLE001 - shown by the main thread
            self.findings.problem(repr(problem))

    def _one(self) -> None:
        chance = self.draw.random()
        if chance < 0.12:
            self._search(self.draw.choice(self.cases.beams))
        elif chance < 0.3:
            self._read(self.draw.choice(self.cases.sampled), "sampled")
        else:
            self._read(self.draw.choice(self.cases.greedy), "greedy")

    def _submit(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except QueueFull:
                time.sleep(0.001)

    def _read(self, case: Case, kind: str) -> None:
        """Read an answer to its end, or cancel it before or somewhere on the way."""
        priority = self.draw.choice(PRIORITIES)
        lazy = self.draw.random() < 0.2
        if lazy:
            generation: Iterator[int] = self.engine.generate(case.prompt, case.params)
        else:
            generation = self._submit(lambda: self.engine.submit(case.prompt, case.params, priority))
        chance, got = self.draw.random(), list[int]()
        most = self.draw.randrange(MOST_NEW) if chance < 0.25 else MOST_NEW + 1
        while len(got) < most:
            try:
                got.append(next(generation))
            except StopIteration:
                break
            except KeyboardInterrupt:
                if lazy:  # a generator ends with what it raises
                    break
        generation.close()  # type: ignore[attr-defined]
        self._compare(case, got, kind, cut=most <= MOST_NEW or lazy)

    def _compare(self, case: Case, got: list[int], kind: str, cut: bool) -> None:
        right = case.answer[: len(got)] if cut else case.answer
        if got == right:
            self.findings.count(kind)
        elif kind == "sampled":  # rounding may decide between two tokens, if rarely
            self.findings.count("sampled otherwise")
        else:
            self.findings.problem(f"{case.prompt}: {got} instead of {right}")

    def _search(self, case: BeamCase) -> None:
        priority = self.draw.choice(PRIORITIES)
        search = self._submit(
            lambda: self.engine.submit_beams(case.prompt, case.beams, case.params, priority)
        )
        if self.draw.random() < 0.15:
            search.cancel()
            self.findings.count("searches cancelled")
            return
        while True:
            try:
                self._compare_beams(case, search.result())
                return
            except KeyboardInterrupt:
                pass

    def _compare_beams(self, case: BeamCase, found: list[Beam]) -> None:
        """The same answers, but for the order of those that rounding may exchange."""
        scores = [beam.score for beam in found]
        expected = [beam.score for beam in case.answers]
        if len(scores) == len(expected) and np.allclose(scores, expected, atol=SAME_SCORE):
            self.findings.count("searches")
        else:
            self.findings.problem(f"{case.prompt} {case.beams}: {found} instead of {case.answers}")

    async def _several(self, n: int) -> None:
        """Read `n` answers side by side in an event loop."""
        cases = [self.draw.choice(self.cases.greedy) for _ in range(n)]
        stops = [self.draw.random() < 0.2 for _ in range(n)]
        await asyncio.gather(*(self._read_async(*each) for each in zip(cases, stops, strict=True)))

    async def _read_async(self, case: Case, stop: bool) -> None:
        generation = self._submit(lambda: self.engine.submit(case.prompt, case.params))
        got: list[int] = []
        async for token in generation:
            got.append(token)
            if stop and len(got) == 3:
                generation.close()
                break
        self._compare(case, got, "greedy in a loop", cut=stop)


class Interrupting:
    """Makes steps of a machine end in KeyboardInterrupt now and then, before or behind what they compute, but
    for those that the engine's own thread runs."""

    def __init__(self, machine: Any, chance: float, seed: int) -> None:
        self._draw = random.Random(seed)
        self._chance = chance
        for name in ("step", "top_k"):
            setattr(machine, name, self._wrapped(getattr(machine, name)))

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            chance = 0.0 if threading.current_thread().name == "kukri-engine" else self._chance
            before, behind = (self._draw.random() < chance for _ in range(2))
            if before:
                raise KeyboardInterrupt
            result = method(*args)
            if behind:
                raise KeyboardInterrupt
            return result

        return run


def run_clients(
    engine: Engine, cases: Cases, count: int, threads: int, seed: int, patience: float
) -> Findings:
    """Let threads run `count` requests together. Nothing that ends for `patience` seconds is a finding."""
    findings = Findings()
    shares = [count // threads + (i < count % threads) for i in range(threads)]
    workers = [
        threading.Thread(target=Client(engine, cases, findings, seed + i).work, args=(share,), daemon=True)
        for i, share in enumerate(shares)
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and not findings.wrong:
        if time.monotonic() - findings.changed_at > patience:
            findings.problem(f"nothing has ended for {patience:.0f} seconds")
            return findings
        time.sleep(0.02)
    for worker in workers:
        worker.join(patience)
    return findings


def check_pages(engine: Engine) -> list[str]:
    """What is not as it should be when nothing runs any more."""
    wrong = []
    with engine._driver.exclusive(), engine._scheduler.lock:
        engine._scheduler.drop_cancelled()
        if engine._scheduler.running or engine._scheduler.waiting:
            wrong.append("sequences are left")
        if engine.table.lengths.any():
            wrong.append("a slot has tokens")
        if engine.table.references.max() > 1:
            wrong.append("a page has two owners")
    engine.reset()
    if engine.table.free_pages != engine.table.n_pages:
        wrong.append(f"{engine.table.n_pages - engine.table.free_pages} pages are lost")
    return wrong
