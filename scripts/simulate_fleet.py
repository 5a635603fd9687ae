"""A fleet of machines that answer requests, simulated from the speeds that one of them was measured to have.

    llm bench -m MODEL -p 512 -n 128 --parallel 1,2,4,8,16 -o json > curve.json
    python scripts/simulate_fleet.py --curve curve.json --machines 1000 --load 0.7 --price 2.5

Without --curve the machines are H200s with Llama 3.1 8B in Q4_0 (docs/performance.md). Requests come at
random (a Poisson process) and belong to groups, such as conversations and documents, whose prompts begin
alike; the popularity of groups follows Zipf's law. A machine keeps the beginnings that it has computed
last. It computes one prompt at a time, before it goes on with the answers, which it writes together.
Machines fail at random moments; their requests are done again elsewhere, from the beginning.

For each way of choosing a machine a line says what came of it: `random`, `least` (the less busy of two random
ones) and `prefix` (what `kukri.runtime.serve.ray_app` does).
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, quantiles

from kukri.runtime.serve.on_ray.prefix import most_requests, ranked


@dataclass(frozen=True)
class Curve:
    """The speed of a machine in tokens a second: of prompts, and of `decode[i]` (sequences, all together)."""

    prefill: float
    decode: tuple[tuple[int, float], ...]

    def rate(self, n: int) -> float:
        """Tokens a second of n answers together; between two measured points on the line through them."""
        points = self.decode
        if n >= points[-1][0]:
            return points[-1][1]
        i = bisect_left(points, (n, 0.0))
        if i == 0:
            return points[0][1] * n / points[0][0]
        (x0, y0), (x1, y1) = points[i - 1 : i + 1]
        return y0 + (y1 - y0) * (n - x0) / (x1 - x0)

    @classmethod
    def read(cls, path: Path) -> Curve:
        """The curve in what `llm bench -o json` has written. ValueError without prompts or answers in it."""
        results = json.loads(path.read_text("utf-8"))
        prefill = [r["avg_ts"] for r in results if r["n_prompt"] and not r["n_gen"] and r["n_parallel"] == 1]
        decode = {r["n_parallel"]: r["avg_ts"] for r in results if r["n_gen"] and not r["n_prompt"]}
        if not prefill or not decode:
            raise ValueError(f"{path.name} needs a test of prompts (-p) and tests of answers (-n --parallel)")
        return cls(max(prefill), tuple(sorted(decode.items())))


H200_8B = Curve(37_273.0, ((1, 684.0), (2, 1_295.0), (4, 2_491.0), (8, 3_762.0)))


@dataclass(frozen=True)
class Traffic:
    """What is asked. Lengths are in tokens: a group's common beginning, and the means of what each prompt
    adds to it and of answers, which are distributed exponentially. `skew` is the exponent of Zipf's law."""

    groups: int = 2000
    skew: float = 0.9
    beginning: int = 1500
    prompt: float = 200.0
    answer: float = 250.0


@dataclass(frozen=True)
class Fleet:
    """The machines: `width` answers at a time and `cache` tokens of beginnings on each, `mtbf` hours between
    two failures of one (0: none), and `restart` seconds until it is back."""

    machines: int = 100
    width: int = 8
    cache: int = 100_000
    mtbf: float = 0.0
    restart: float = 60.0


@dataclass
class Request:
    group: int
    prompt: int
    answer: int
    came: float
    first_token: float | None = None


@dataclass
class Machine:
    """A machine. `written`: tokens that each of its answers would have if it had begun at zero, so that an
    answer ends when this has reached what it was at its beginning, and the answer's length more."""

    number: int
    up: bool = True
    at: float = 0.0  # the time at which the rest is true
    written: float = 0.0
    busy: float = 0.0  # seconds
    version: int = 0  # of its next event
    waiting: list[Request] = field(default_factory=list)
    reading: tuple[float, Request] | None = None  # when the prompt is done
    writing: list[tuple[float, int, Request]] = field(default_factory=list)  # a heap
    beginnings: OrderedDict[int, None] = field(default_factory=OrderedDict)

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.writing) + (self.reading is not None)


@dataclass
class Outcome:
    """What came of a simulation: its requests, and the tokens of prompts that were computed, or found in a
    cache, or computed and lost by a failure."""

    requests: list[tuple[Request, float]] = field(default_factory=list)
    computed: int = 0
    found: int = 0
    lost: float = 0.0
    failures: int = 0
    seconds: float = 0.0
    busy: float = 0.0

    def row(self, fleet: Fleet, price: float) -> str:
        tokens = sum(request.answer for request, _ in self.requests)
        first = [request.first_token - request.came for request, _ in self.requests if request.first_token]
        whole = [end - request.came for request, end in self.requests]
        cost = price * fleet.machines * self.seconds / 3600 / tokens * 1e6
        median, most = _share(first, 50), _share(first, 99)
        busy = self.busy / self.seconds / fleet.machines
        found = self.found / (self.found + self.computed)
        return (
            f"{tokens / self.seconds:>11,.0f} {busy:>8.0%} {found:>8.0%} {median:>8.3f} {most:>8.3f} "
            f"{fmean(whole):>8.2f} {self.failures:>8} {self.lost / tokens:>8.2%} {cost:>8.3f}"
        )


def _share(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


HEAD = (
    "        answers/s,   busy   found   first token, s    whole,  machines  tokens     cost of\n"
    "           tokens                  median     99 %   mean s      lost    lost    a million"
)

Choice = Callable[["Simulation", Request], Machine]  # of one that is up; one is


def at_random(fleet: Simulation, request: Request) -> Machine:
    while not (machine := fleet.random.choice(fleet.machines)).up:
        pass
    return machine


def less_busy(fleet: Simulation, request: Request) -> Machine:
    two = at_random(fleet, request), at_random(fleet, request)
    return min(two, key=lambda machine: machine.load)


def by_prefix(fleet: Simulation, request: Request) -> Machine:
    """The first one of `preferred`, without sorting all machines each time."""
    most = most_requests(fleet.n_open, fleet.n_up)
    for number in fleet.ranking(request.group):
        machine = fleet.machines[number]
        if machine.up and machine.load < most:
            return machine
    return less_busy(fleet, request)


CHOICES: dict[str, Choice] = {"random": at_random, "least": less_busy, "prefix": by_prefix}


class Simulation:
    """Events in the order of time: requests that come, machines that get something done, fail, and return."""

    def __init__(self, fleet: Fleet, curve: Curve, traffic: Traffic, choose: Choice, seed: int = 0) -> None:
        self.fleet, self.curve, self.traffic, self._choose = fleet, curve, traffic, choose
        self.random = random.Random(seed)
        self.machines = [Machine(i) for i in range(fleet.machines)]
        self.n_up = len(self.machines)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._n_events = 0
        self._nobody: list[Request] = []  # requests while all machines are down
        self.n_open = 0  # requests
        self._rankings: dict[int, list[int]] = {}
        self.outcome = Outcome()

    def ranking(self, group: int) -> list[int]:
        """The numbers of all machines in the order for a group."""
        if group not in self._rankings:
            self._rankings[group] = ranked(str(group), range(self.fleet.machines))
        return self._rankings[group]

    def run(self, n_requests: int, per_second: float) -> Outcome:
        """Answer so many requests, which come at this rate."""
        traffic, time = self.traffic, 0.0
        weights = [1 / (i + 1) ** traffic.skew for i in range(traffic.groups)]
        groups = self.random.choices(range(traffic.groups), weights, k=n_requests)
        for group in groups:
            time += self.random.expovariate(per_second)
            prompt, answer = (
                1 + int(self.random.expovariate(1 / n)) for n in (traffic.prompt, traffic.answer)
            )
            self._at(time, partial(self._send, Request(group, prompt, answer, time)))
        if self.fleet.mtbf:
            for machine in self.machines:
                self._fail_later(machine, 0.0)
        while len(self.outcome.requests) < n_requests:
            now, _, happen = heapq.heappop(self._events)
            happen(now)
        self.outcome.seconds = now
        for machine in self.machines:
            self._advance(machine, now)
            self.outcome.busy += machine.busy
        return self.outcome

    def _at(self, time: float, happen: Callable[[float], None]) -> None:
        self._n_events += 1
        heapq.heappush(self._events, (time, self._n_events, happen))

    def _send(self, request: Request, now: float) -> None:
        if not self.n_up:
            self._nobody.append(request)
            return
        machine = self._choose(self, request)
        self._advance(machine, now)
        self.n_open += 1
        machine.waiting.append(request)
        self._go_on(machine, now)

    def _advance(self, machine: Machine, now: float) -> None:
        """Account for what a machine has done until now."""
        seconds, machine.at = now - machine.at, now
        if machine.reading is None and machine.writing:
            n = len(machine.writing)
            machine.written += seconds * self.curve.rate(n) / n
        if machine.load:
            machine.busy += seconds

    def _go_on(self, machine: Machine, now: float) -> None:
        """Begin what comes next on a machine, and have its end happen."""
        if machine.reading is None and machine.waiting and len(machine.writing) < self.fleet.width:
            request = machine.waiting.pop(0)
            machine.reading = now + self._read(machine, request) / self.curve.prefill, request
        machine.version += 1
        if machine.reading is not None:
            end = machine.reading[0]
        elif machine.writing:
            n = len(machine.writing)
            end = now + max(0.0, machine.writing[0][0] - machine.written) * n / self.curve.rate(n)
        else:
            return
        version = machine.version
        self._at(end, lambda then: self._done(machine, version, then))

    def _read(self, machine: Machine, request: Request) -> int:
        """The tokens of a prompt that must be computed; its beginning is there afterwards."""
        known, n = request.group in machine.beginnings, request.prompt + self.traffic.beginning
        machine.beginnings[request.group] = None
        machine.beginnings.move_to_end(request.group)
        if len(machine.beginnings) * self.traffic.beginning > self.fleet.cache:
            machine.beginnings.popitem(last=False)
        if known:
            n -= self.traffic.beginning
            self.outcome.found += self.traffic.beginning
        self.outcome.computed += n
        return n

    def _done(self, machine: Machine, version: int, now: float) -> None:
        if version != machine.version:
            return
        self._advance(machine, now)
        if machine.reading is not None:
            request, machine.reading = machine.reading[1], None
            request.first_token = request.first_token or now
            self._n_events += 1
            heapq.heappush(machine.writing, (machine.written + request.answer, self._n_events, request))
        else:
            self.outcome.requests.append((heapq.heappop(machine.writing)[2], now))
            self.n_open -= 1
        self._go_on(machine, now)

    def _fail_later(self, machine: Machine, now: float) -> None:
        self._at(
            now + self.random.expovariate(1 / (self.fleet.mtbf * 3600)),
            lambda then: self._fail(machine, then),
        )

    def _fail(self, machine: Machine, now: float) -> None:
        self._advance(machine, now)
        self.outcome.failures += 1
        self.outcome.lost += sum(each.answer - (end - machine.written) for end, _, each in machine.writing)
        again = [each for _, _, each in machine.writing] + machine.waiting
        again += [machine.reading[1]] if machine.reading else []
        machine.writing, machine.waiting, machine.reading = [], [], None
        self.n_open -= len(again)
        machine.beginnings.clear()
        machine.version += 1
        machine.up = False
        self.n_up -= 1
        self._at(now + self.fleet.restart, lambda then: self._return(machine, then))
        for request in again:
            self._send(request, now)

    def _return(self, machine: Machine, now: float) -> None:
        machine.at, machine.up = now, True
        self.n_up += 1
        self._fail_later(machine, now)
        waiting, self._nobody = self._nobody, []
        for request in waiting:
            self._send(request, now)


def capacity(fleet: Fleet, curve: Curve, traffic: Traffic) -> float:
    """Requests a second that the machines could answer if nothing were found in a cache."""
    reading = (traffic.beginning + traffic.prompt) / curve.prefill
    return fleet.machines / (reading + traffic.answer / curve.rate(fleet.width))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--curve", type=Path, help="what `llm bench -o json` has written")
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--width", type=int, default=8, help="answers at a time on each")
    parser.add_argument("--cache", type=int, default=100_000, help="tokens of beginnings that each keeps")
    parser.add_argument("--load", type=float, default=0.7, help="of what they could do without caches")
    parser.add_argument("--requests", type=int, default=0, help="default: 300 a machine")
    parser.add_argument(
        "--mtbf", type=float, default=0.0, help="hours between failures of a machine; 0: none"
    )
    parser.add_argument("--restart", type=float, default=60.0, help="seconds until it is back")
    parser.add_argument("--price", type=float, default=2.5, help="of a machine for an hour")
    parser.add_argument("--seed", type=int, default=0)
    for name, value in vars(Traffic()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    given = parser.parse_args()
    curve = H200_8B if given.curve is None else Curve.read(given.curve)
    fleet = Fleet(given.machines, given.width, given.cache, given.mtbf, given.restart)
    traffic = Traffic(given.groups, given.skew, given.beginning, given.prompt, given.answer)
    per_second = given.load * capacity(fleet, curve, traffic)
    n = given.requests or 300 * fleet.machines
    print(f"{fleet.machines} machines, {per_second:.1f} requests a second, {n} in all\n{HEAD}")
    for name, choose in CHOICES.items():
        outcome = Simulation(fleet, curve, traffic, choose, given.seed).run(n, per_second)
        print(f"{name:<6} {outcome.row(fleet, given.price)}", flush=True)


if __name__ == "__main__":
    main()
