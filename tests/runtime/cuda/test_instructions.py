"""Each PTX instruction by itself against NumPy: its meaning in Python, and, where there is one, the card."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from kukri.runtime.cuda import ptx
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.errors import CudaUnavailable
from kukri.runtime.cuda.kernels.attention.scores import quad_maximum, quad_sum
from kukri.runtime.cuda.kernels.common.common import warp_maximum, warp_sum
from kukri.runtime.cuda.ptx import load_float, store_float, thread

from . import simulator
from .instructions.checks import CHECKED, CHECKS, WARPGROUP_CHECKS
from .instructions.launching import on_the_card
from .simulator import run


@pytest.fixture(scope="module")
def card():
    try:
        device = Device()
    except CudaUnavailable as problem:
        pytest.skip(str(problem))
    yield device
    device.close()


@pytest.mark.parametrize("check", [*CHECKS, *WARPGROUP_CHECKS])
def test_meaning(check):
    def launch(kernel, grid, threads, arguments, shared, constants=None, cluster=1):
        run(kernel, constants or {}, grid, threads, arguments, shared, cluster)

    check(launch)


@pytest.mark.parametrize("check", [*CHECKS, *WARPGROUP_CHECKS])
def test_on_the_card(check, card):
    if check in WARPGROUP_CHECKS and not card.warpgroups:
        pytest.skip("only cards of compute capability 9.0 have these")
    check(on_the_card(card))


def test_all_are_here():
    """But those that only order launches, whose effect no kernel sees alone."""
    used = "".join(inspect.getsource(kernel) for kernel in CHECKED)
    every = {name for name in ptx.__all__ if name != "Instruction"}
    assert every - set(re.findall(r"\w+(?=\()", used)) == {"wait_for_grid", "launch_dependents"}


def reduce_all(x, out):
    value = load_float(x + 4 * thread())
    store_float(out + 16 * thread(), warp_sum(value))
    store_float(out + 16 * thread() + 4, warp_maximum(value))
    store_float(out + 16 * thread() + 8, quad_sum(value))
    store_float(out + 16 * thread() + 12, quad_maximum(value))


def test_the_simulator_s_reductions_are_those_of_the_kernels(monkeypatch):
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    short, long = np.full((2, 64, 4), np.nan, np.float32)
    run(reduce_all, {}, (1,), 64, [x, short])
    monkeypatch.setattr(simulator, "REDUCTIONS", {})
    simulator._staged.cache_clear()
    run(reduce_all, {}, (1,), 64, [x, long])
    simulator._staged.cache_clear()
    np.testing.assert_array_equal(short, long)
    np.testing.assert_allclose(short[:, 0], x.reshape(2, 32).sum(1).repeat(32), rtol=1e-5)
    np.testing.assert_array_equal(short[:, 3], x.reshape(16, 4).max(1).repeat(4))
