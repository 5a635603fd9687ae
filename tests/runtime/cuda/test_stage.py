"""What staging makes of a function, besides what the tests of kernels see."""

from __future__ import annotations

import dis

import pytest

from kukri.runtime.cuda.compile.stage import constants_for, device, registers, second, stage
from kukri.runtime.cuda.kernels.common.common import activate, quotient

N = WIDTH = FORMAT_BITS = 0


@device
def bits_of(x):
    return x * FORMAT_BITS


@device
def inner(x):
    return bits_of(x) + WIDTH


@device
def outer(x):
    return inner(x) + other_bits_of(x)


other_bits_of = second(bits_of)


def test_device_functions_depend_on_the_constants_that_they_name():
    constants = {"N": 3, "WIDTH": 4, "FORMAT_BITS": 5, "KIND": 2, "FORMAT_BITS_SECOND": 6}
    assert constants_for(bits_of, constants) == {"FORMAT_BITS": 5}
    assert constants_for(inner, constants) == {"WIDTH": 4, "FORMAT_BITS": 5}
    assert constants_for(other_bits_of, constants) == {"FORMAT_BITS": 6}
    assert constants_for(outer, constants) == {"WIDTH": 4, "FORMAT_BITS": 5, "FORMAT_BITS_SECOND": 6}
    assert constants_for(quotient, constants) == {}
    assert constants_for(activate, constants) == {"KIND": 2}


def sum_of(*values):
    return sum(i * value for i, value in enumerate(values))


def long_call(x):
    values = registers(N, 0)
    values[()] = many(x, N)
    return sum_of(x, *values[()])


def many(x, n):
    return tuple(x + i for i in range(n))


@pytest.mark.parametrize("n", [24, 25, 26, 70])
def test_long_calls_are_made_in_parts(n):
    """Python's compiler appends the arguments of a long call to a list, one instruction each."""
    staged = stage(long_call, {"N": n}, lambda used, _: used if used != "float32" else float)
    assert staged(5) == sum_of(5, *many(5, n))
    assert not any(each.opname == "LIST_APPEND" for each in dis.get_instructions(staged))
