"""The simulation of a fleet, at a small size, against what can be worked out."""

from __future__ import annotations

import heapq
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kukri.tests.script_modules import load_script


@pytest.fixture(scope="module")
def fleet() -> ModuleType:
    return load_script("simulate_fleet.py")


def simulate(
    fleet: ModuleType, choice: str = "prefix", n: int = 1500, per_second: float = 10.0, **more: Any
) -> Any:
    """Ten machines that fail as `more` says."""
    machines = fleet.Fleet(machines=10, cache=30_000, **more)
    curve = fleet.Curve(1000.0, ((1, 100.0), (4, 200.0), (8, 400.0)))
    traffic = fleet.Traffic(groups=200, beginning=400, prompt=50.0, answer=50.0)
    return fleet.Simulation(machines, curve, traffic, fleet.CHOICES[choice], seed=3).run(n, per_second)


def test_a_curve(fleet: ModuleType, tmp_path: Path) -> None:
    tests = [(512, 0, 1, 900.0), (0, 128, 1, 100.0), (0, 128, 4, 300.0), (512, 0, 4, 950.0)]
    names = ("n_prompt", "n_gen", "n_parallel", "avg_ts")
    path = tmp_path / "curve.json"
    path.write_text(json.dumps([dict(zip(names, test, strict=True)) for test in tests]))
    curve = fleet.Curve.read(path)
    assert curve.prefill == 900.0
    assert [curve.rate(n) for n in (1, 2, 4, 9)] == [100.0, pytest.approx(500 / 3), 300.0, 300.0]
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"curve\.json needs"):
        fleet.Curve.read(path)


def test_one_request_takes_what_its_tokens_take(fleet: ModuleType) -> None:
    outcome = simulate(fleet, n=1)
    ((request, end),) = outcome.requests
    reading, writing = (request.prompt + 400) / 1000, request.answer / 100
    assert request.first_token - request.came == pytest.approx(reading)
    assert end - request.came == pytest.approx(reading + writing)
    assert outcome.busy == pytest.approx(reading + writing)
    assert (outcome.found, outcome.computed) == (0, request.prompt + 400)


def test_two_answers_share_a_machine(fleet: ModuleType) -> None:
    """Two of 40 and 100 tokens together: 80 at the speed of two, the rest at the speed of one."""
    curve = fleet.Curve(1e9, ((1, 100.0), (2, 160.0)))
    traffic = fleet.Traffic(groups=1, beginning=0)
    simulation = fleet.Simulation(fleet.Fleet(machines=1), curve, traffic, fleet.at_random)
    requests = [fleet.Request(0, 1, n, 0.0) for n in (40, 100)]
    for request in requests:
        simulation._send(request, 0.0)
    while len(simulation.outcome.requests) < 2:
        now, _, happen = heapq.heappop(simulation._events)
        happen(now)
    assert [end for _, end in simulation.outcome.requests] == [
        pytest.approx(80 / 160),
        pytest.approx(80 / 160 + 60 / 100),
    ]


def test_prefixes_are_found_and_nobody_waits_for_them(fleet: ModuleType) -> None:
    outcomes = {choice: simulate(fleet, choice) for choice in fleet.CHOICES}
    found = {
        choice: outcome.found / (outcome.found + outcome.computed) for choice, outcome in outcomes.items()
    }
    assert found["prefix"] > 1.3 * max(found["random"], found["least"])
    first = {
        choice: fleet.fmean(request.first_token - request.came for request, _ in outcome.requests)
        for choice, outcome in outcomes.items()
    }
    assert first["prefix"] < first["least"] < first["random"]


def test_failures_lose_no_request(fleet: ModuleType) -> None:
    outcome = simulate(fleet, mtbf=0.01, restart=5.0)
    assert len({id(request) for request, _ in outcome.requests}) == len(outcome.requests) == 1500
    assert outcome.failures > 10
    assert 0 < outcome.lost < 0.5 * sum(request.answer for request, _ in outcome.requests)
    again = simulate(fleet, mtbf=0.01, restart=5.0)
    assert (again.seconds, again.lost, again.busy) == (outcome.seconds, outcome.lost, outcome.busy)


def test_an_overloaded_fleet_has_its_capacity(fleet: ModuleType) -> None:
    outcome = simulate(fleet, "least", per_second=1e6)
    tokens = sum(request.answer for request, _ in outcome.requests)
    most = 10 * 400.0
    assert 0.3 * most < tokens / outcome.seconds < most
    assert outcome.busy / outcome.seconds > 8
    assert "%" in outcome.row(fleet.Fleet(machines=10), 2.5)
