"""The top k by way of the maxima of groups is that of all logits, also where these are not finite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kukri.runtime.cpu import top_logits
from kukri.runtime.cpu.abi.records import STEP
from kukri.runtime.cpu.abi.sizes import LOGITS_GROUP
from kukri.runtime.cpu.team import Team
from kukri.runtime.cpu.top_logits import TopLogits
from kukri.runtime.engine.sampling.top_k import TopK, top_k_of


@pytest.fixture(scope="module")
def team():
    team = Team(3)
    yield team
    team.close()


def found(team: Team, logits: np.ndarray, k: int, n_tokens: int) -> list[TopK]:
    """The top k that the threads of a team and TopLogits find."""
    top = TopLogits(len(logits), logits.shape[1])
    assert top.serves(k, n_tokens)
    nothing = np.zeros(0, dtype=[("kernel", "i8"), ("arguments", "i8"), ("barrier", "i8"), ("ahead", "i8")])
    run: Any = SimpleNamespace(result=logits, instructions=nothing)
    instructions = top.instructions(run, k, n_tokens)
    step = np.zeros(1, STEP)
    step["instructions"], step["n_instructions"] = instructions.ctypes.data, len(instructions)
    step["n_threads"], step["n_rows"], step["n_logits"] = team.n_threads, len(logits), len(logits)
    team.run(step.ctypes.data)
    return list(top.top_k(logits[:, :n_tokens], k))


def check(team: Team, logits: np.ndarray, k: int, n_tokens: int) -> None:
    for one, other in zip(found(team, logits, k, n_tokens), top_k_of(logits[:, :n_tokens], k), strict=True):
        if np.isnan(other.logits[0]):
            assert np.isnan(one.logits[0])
            continue
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.logits, other.logits)
        assert one.logits.dtype == np.float32


@pytest.mark.parametrize("k", [1, 2, 7, 40])
@pytest.mark.parametrize(
    ("width", "n_tokens"), [(49152, 49152), (32003, 32001), (10305, 10240), (12800, 10303), (11000, 10241)]
)
def test_it_is_the_top_k_of_all_logits(team: Team, k: int, width: int, n_tokens: int):
    rng = np.random.default_rng(k + width)
    memory = rng.standard_normal((3, width + 5), dtype=np.float32) * 5
    memory[1] = np.round(memory[1])  # many equals
    memory[:, n_tokens:] = 1e9  # padding, which is no token
    check(team, memory[:, :width], k, n_tokens)


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -3e38])
@pytest.mark.parametrize("at", [0, LOGITS_GROUP - 1, 5000, 64 * LOGITS_GROUP, 8191, 8200])
def test_values_that_are_not_finite_and_extremes(team: Team, k: int, value: float, at: int):
    logits = np.random.default_rng(at).standard_normal((2, 8201), dtype=np.float32)
    logits[1, at] = value
    check(team, logits, k, 8201)


@pytest.mark.parametrize("k", [1, 3])
def test_rows_of_one_value(team: Team, k: int):
    for value in (0.0, -0.0, -7.5, -np.inf, np.nan):
        check(team, np.full((1, 64 * LOGITS_GROUP + 3), value, np.float32), k, 64 * LOGITS_GROUP + 3)


def test_the_largest_logit_is_found_by_the_threads(team: Team, monkeypatch: pytest.MonkeyPatch):
    logits = np.random.default_rng(3).standard_normal((4, 9001), dtype=np.float32)
    expected = logits[:, :8999].argmax(axis=1).tolist()
    monkeypatch.setattr(top_logits, "top_k_of", None)
    assert [top.ids.item() for top in found(team, logits, 1, 8999)] == expected


def test_few_logits_are_looked_at_one_by_one():
    assert not TopLogits(1, 1000).serves(40, 1000)
    assert not TopLogits(1, 50).serves(1, 50)
