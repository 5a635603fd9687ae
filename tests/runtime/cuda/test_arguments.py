"""Argument records: how they are made and packed, and how staging takes kernels that have one."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kukri.runtime.cuda.abi.arguments import KernelArguments, Region
from kukri.runtime.cuda.compile.kernel import kernel, pack_arguments
from kukri.runtime.cuda.compile.stage import device, parameter_types
from kukri.runtime.cuda.kernels.common import pointwise
from kukri.runtime.cuda.kernels.recurrent.conv import conv_prefill
from kukri.runtime.cuda.ptx import load_float, store_float, thread

from .simulator import run


class Inner(KernelArguments):
    x: Region
    scale: float


class Outer(KernelArguments):
    out: Region
    inner: Inner
    n: int
    shift: float = 0.5


def scaled(args: Outer):
    """out = scale · x + shift."""
    if thread() < args.n:
        value = loaded(args.inner, thread())
        store_float(args.out.address + thread() * args.out.stride, value + args.shift)


@device
def loaded(inner: Inner, i):
    return inner.scale * load_float(inner.x.address + i * inner.x.stride)


def clashing(args: Outer):
    args_n = 1
    store_float(args.out.address, args.shift * args_n)


def unknown(args: Outer):
    store_float(args.out.address, args.shifted)


def record(x, out):
    return Outer(out=Region(out, 4), inner=Inner(x=Region(x, 8), scale=3), n=4)


def test_the_order_is_that_of_the_fields():
    args = record(100, 200)
    assert list(args) == [200, 4, 100, 8, 3.0, 4, 0.5]
    assert isinstance(args.inner.scale, float)  # an int would be packed as 64 bits
    assert pack_arguments(*args) == struct.pack("<qqqqf4xqf", *args)
    assert parameter_types(scaled) == [int, int, int, int, float, int, float]


def test_fields_are_checked():
    with pytest.raises(TypeError, match="Inner needs scale"):
        Inner(x=Region(1, 2))
    with pytest.raises(TypeError, match="Inner has no field y"):
        Inner(x=Region(1, 2), scale=1.0, y=3)
    with pytest.raises(AttributeError, match="cannot be changed"):
        record(1, 2).n = 5


def test_a_kernel_reads_fields_and_hands_records_on():
    x, out = np.arange(16, dtype=np.float32), np.zeros(8, np.float32)
    run(scaled, {}, (1,), 8, record(x, out))
    np.testing.assert_array_equal(out, [0.5, 6.5, 12.5, 18.5, 0, 0, 0, 0])


def test_staging_refuses_what_it_would_do_wrong():
    out = np.zeros(1, np.float32)
    with pytest.raises(AssertionError, match=r"variables that are called like fields: \['args_n'\]"):
        run(clashing, {}, (1,), 1, record(out, out))
    with pytest.raises(AttributeError, match=r"args.shifted is no field"):
        run(unknown, {}, (1,), 1, record(out, out))


def test_a_kernel_is_named_by_its_function():
    named = kernel(conv_prefill, 128, TAPS=4, BIAS=0)
    assert (named.module, named.name) == ("recurrent.conv", "conv_prefill")
    assert named.function() is conv_prefill
    assert named.constants == (("BIAS", 0), ("TAPS", 4))
    assert kernel(pointwise.add, 256).module == "common.pointwise"
