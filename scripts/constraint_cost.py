"""What does a form of the answer cost for each token?

    python scripts/constraint_cost.py FOLDER… -m MODEL [--steps 2000] [--random llama-3.1-8b:Q4_0]

FOLDER has JSON schemas, as for structured.py. Answers that keep to a schema and plain ones to the same prompt
take turns, as long as each other, so that whatever else happens on the machine meets both. Printed are the
time of a step (the machine's part), and the time between a step's logits and the next step (waiting for the
mask, applying it, sampling, forced tokens, the scheduler), each in microseconds, and what a form adds as a
share of a plain token. `--random` runs random weights of a published shape on the card, with the vocabulary
of MODEL; `--pretend` runs none, but has random logits after so many milliseconds, as from a card: what is
left is the host's part.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from structured import supported

import kukri
from kukri.runtime.answers.structured.guided import GuidedConstraint
from kukri.runtime.answers.structured.response_format import ResponseFormat
from kukri.runtime.answers.structured.vocabulary import Vocabulary
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.constraint import Constraint
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.engine.sampling.top_k import MAX_TOP_K, TopK, top_k_of
from kukri.runtime.engine.scheduling import scheduler
from kukri.runtime.engine.scheduling.constrained import ConstrainedAnswer
from kukri.runtime.engine.state import SequenceStates


@dataclass
class Times:
    """What was measured of one kind of answers, in seconds."""

    steps: list[float] = field(default_factory=list)  # of a single row
    gaps: list[float] = field(default_factory=list)  # between two steps
    busy: list[float] = field(default_factory=list)  # the same, as the processor's time of the thread
    waits: list[float] = field(default_factory=list)  # for masks
    masks: list[float] = field(default_factory=list)  # processor's time of the thread that computes them
    n_tokens: int = 0
    seconds: float = 0.0  # behind the prompt


class Clock:
    """Notes when steps begin and end, in the list of the kind of answers that is running."""

    def __init__(self) -> None:
        self.times = Times()
        self._ended: tuple[float, float] | None = None  # the latest step's end: clock, processor's time
        self._run: Callable[..., Any] = scheduler.run_step
        self._masks: Callable[..., Any] = ConstrainedAnswer.masks
        self._compute: Callable[..., Any] = ConstrainedAnswer._compute

    def install(self) -> None:
        stepping: Any = scheduler
        constrained: Any = ConstrainedAnswer
        stepping.run_step = self.run_step
        clock = self

        def masks(answer: ConstrainedAnswer) -> Any:
            start = time.perf_counter()
            found = clock._masks(answer)
            clock.times.waits.append(time.perf_counter() - start)
            return found

        def compute(answer: ConstrainedAnswer, drafted: Any) -> Any:
            start = time.thread_time()
            found = clock._compute(answer, drafted)
            clock.times.masks.append(time.thread_time() - start)
            return found

        constrained.masks = masks
        constrained._compute = compute

    def begin(self, times: Times) -> None:
        """An answer begins, of the kind that `times` is for."""
        self.times, self._ended = times, None

    def run_step(self, machine: Any, table: Any, plan: Any, n_tokens: int) -> Any:
        start = time.perf_counter()
        if self._ended is not None:
            self.times.gaps.append(start - self._ended[0])
            self.times.busy.append(time.thread_time() - self._ended[1])
        results = self._run(machine, table, plan, n_tokens)
        now = time.perf_counter()
        if self._ended is not None and sum(rows.n for rows in plan) == 1:
            self.times.steps.append(now - start)
        self._ended = now, time.thread_time()
        return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--random", help="a shape of cuda_bench/models.py and a block format: SHAPE:FORMAT")
    parser.add_argument(
        "--pretend", type=float, metavar="MS", help="a step of a machine that computes nothing"
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=600, help="at most")
    parser.add_argument("--max-tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--temperature", type=float, default=[0.0], nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tokenizer = kukri.load_tokenizer(options.model)
    vocabulary = Vocabulary(tokenizer, tokenizer.end_ids)
    prompt = tokenizer.encode("Write an example of that in JSON:\n")
    if options.random:
        shape, kind = options.random.split(":")
        measure(random_engine(shape, kind, tokenizer), vocabulary, prompt, options)
        return 0
    if options.pretend:
        machine = Pretended(tokenizer.vocab_size, options.pretend / 1000)
        measure(engine_of(machine, tokenizer), vocabulary, prompt, options)
        return 0
    with kukri.load(options.model, context=1024, speculate="off") as model:
        measure(model.engine, vocabulary, prompt, options)
    return 0


def random_engine(shape: str, kind: str, tokenizer: kukri.Tokenizer) -> Engine:
    """An engine on the card, with random weights."""
    from cuda_bench import models

    from kukri.runtime.cuda.machine import CudaMachine

    models.SHAPES[shape] = (*models.SHAPES[shape][:6], tokenizer.vocab_size, models.SHAPES[shape][7])
    start = time.perf_counter()
    machine = CudaMachine(models.random_model(shape, kind), 1024 // 64)
    print(f"loaded within {time.perf_counter() - start:.1f} s", flush=True)
    return engine_of(machine, tokenizer)


def engine_of(machine: Any, tokenizer: kukri.Tokenizer) -> Engine:
    config: Any = SimpleNamespace(vocab_size=tokenizer.vocab_size)
    table = PageTable(1024 // 64)
    return Engine(machine, table, config, tokenizer.end_ids, context=1000, speculate=False)


class Pretended:
    """A machine whose logits are random, and come after a time in which the host has nothing to do."""

    max_rows, max_logits, page_layout = 512, 64, ""
    states = SequenceStates([], 1)

    def __init__(self, n_tokens: int, seconds: float) -> None:
        self._logits = 3 * np.random.default_rng(0).standard_normal((64, n_tokens), np.float32)
        self._top_k = top_k_of(self._logits, MAX_TOP_K)
        self._seconds = seconds
        self._out = np.empty((1, n_tokens), np.float32)
        self._n = 0

    def step(self, batch: Batch, table: PageTable) -> np.ndarray:
        time.sleep(self._seconds)
        self._n += 1
        np.copyto(self._out, self._logits[self._n % len(self._logits)])
        return self._out[: len(batch.logits_indices)]

    def top_k(self, batch: Batch, table: PageTable, k: int, n_tokens: int) -> list[TopK]:
        time.sleep(self._seconds)
        self._n += 1
        top = self._top_k[self._n % len(self._top_k)]
        return [TopK(top.ids[:k], top.logits[:k])][: len(batch.logits_indices)]

    def copy_page(self, source: int, target: int) -> None:
        pass


def measure(engine: Engine, vocabulary: Vocabulary, prompt: list[int], options: argparse.Namespace) -> None:
    """Answers of both kinds by turns, until there are enough steps, at each temperature."""
    forms = [form for _, _, form in supported(argparse.Namespace(**vars(options), count=40))]
    clock = Clock()
    clock.install()
    for temperature in options.temperature:
        print(f"\ntemperature {temperature:g}")
        kinds = {"plain": Times(), "form": Times()}
        take_turns(engine, vocabulary, prompt, forms, temperature, clock, kinds, options)
        report(kinds)


def take_turns(
    engine: Engine,
    vocabulary: Vocabulary,
    prompt: list[int],
    forms: list[ResponseFormat],
    temperature: float,
    clock: Clock,
    kinds: dict[str, Times],
    options: argparse.Namespace,
) -> None:
    """Answers with a form and without one."""
    start = time.perf_counter()
    for turn in range(10_000):
        constraint = GuidedConstraint(vocabulary, forms[turn % len(forms)].grammar)
        params = SamplingParams(temperature=temperature, max_tokens=options.max_tokens, seed=turn)
        ids = prompt if turn else prompt * 2  # what is put off until the first step is not counted
        n = answer(engine, ids, params, constraint, clock, kinds["form"] if turn else Times())
        params = SamplingParams(temperature=temperature, max_tokens=max(2, n), seed=turn, ignore_eos=True)
        answer(engine, ids, params, None, clock, kinds["plain"] if turn else Times())
        if turn == 0:
            print(f"the first answers: {time.perf_counter() - start:.1f} s", flush=True)
            start = time.perf_counter()
        if len(kinds["plain"].gaps) >= options.steps or time.perf_counter() - start > options.seconds:
            break


def answer(
    engine: Engine,
    prompt: list[int],
    params: SamplingParams,
    constraint: Constraint | None,
    clock: Clock,
    times: Times,
) -> int:
    """Run one answer; how many tokens it has."""
    clock.begin(times)
    generation = engine.submit(prompt, params, constraint=constraint)
    next(generation, None)
    start = time.perf_counter()
    n = len(list(generation))
    times.seconds += time.perf_counter() - start
    times.n_tokens += n
    return n + 1


def report(kinds: dict[str, Times]) -> None:
    """A line for each kind and what was measured of it, then what a form adds."""
    print(f"{'':24}" + "".join(f"{what:>10}" for what in ("n", "mean", "median", "95 %", "99 %", "trimmed")))
    for kind, times in kinds.items():
        for what, seconds in (
            ("step", times.steps),
            ("between steps", times.gaps),
            ("… processor", times.busy),
            ("… waiting for masks", times.waits),
            ("masks, processor", times.masks),
        ):
            if seconds:
                micro = 1e6 * np.array(seconds)
                numbers = [micro.mean(), *np.percentile(micro, [50, 95, 99]), trimmed(micro)]
                print(f"{kind:6}{what:18}{len(micro):10}" + "".join(f"{x:10.0f}" for x in numbers))
        print(f"{kind:6}a token, all in all: {1e6 * times.seconds / times.n_tokens:.0f}")
    plain, form = kinds["plain"], kinds["form"]
    for what, of in (("median", np.median), ("mean", np.mean), ("trimmed mean", trimmed)):
        token = of(np.array(plain.steps)) + of(np.array(plain.gaps))
        between = of(np.array(form.gaps)) - of(np.array(plain.gaps))
        within = of(np.array(form.steps)) - of(np.array(plain.steps))
        print(
            f"a form adds, of a plain token ({1e6 * token:.0f} µs), {what}: "
            f"{between / token:.2%} between steps, {within / token:.2%} within them"
        )
        work = 1e6 * (of(np.array(form.busy)) - of(np.array(plain.busy)))
        mask = 1e6 * of(np.array(form.masks))
        print(f"  processor's time: {work:.0f} µs between steps, and {mask:.0f} µs for the mask")


def trimmed(values: np.ndarray) -> float:
    """The mean without the highest and the lowest hundredth, in which other programs on the machine show."""
    low, high = np.percentile(values, [1, 99])
    return float(values[(values >= low) & (values <= high)].mean())


if __name__ == "__main__":
    sys.exit(main())
