"""Each PTX instruction by itself against NumPy: its meaning in Python, and, where there is one, the card."""

from __future__ import annotations

import inspect
import re

import pytest

from kukri.runtime.cuda import ptx
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.errors import CudaUnavailable

from . import instructions
from .simulator import run


@pytest.fixture(scope="module")
def card():
    try:
        device = Device()
    except CudaUnavailable as problem:
        pytest.skip(str(problem))
    yield device
    device.close()


@pytest.mark.parametrize("check", [*instructions.CHECKS, *instructions.WARPGROUP_CHECKS])
def test_meaning(check):
    def launch(kernel, grid, threads, arguments, shared, constants=None, cluster=1):
        run(kernel, constants or {}, grid, threads, arguments, shared, cluster)

    check(launch)


@pytest.mark.parametrize("check", [*instructions.CHECKS, *instructions.WARPGROUP_CHECKS])
def test_on_the_card(check, card):
    if check in instructions.WARPGROUP_CHECKS and not card.warpgroups:
        pytest.skip("only cards of compute capability 9.0 have these")
    check(instructions.on_the_card(card))


def test_all_are_here():
    """But those that only order launches, whose effect no kernel sees alone."""
    used = "".join(inspect.getsource(kernel) for kernel in instructions.CHECKED)
    every = {name for name in ptx.__all__ if name != "Instruction"}
    assert every - set(re.findall(r"\w+(?=\()", used)) == {"wait_for_grid", "launch_dependents"}
