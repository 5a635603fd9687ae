"""What follows a product of many rows: scales, the gate, bias, and what the result is added to."""

from __future__ import annotations

from ...compile.stage import device, registers
from ...ptx import load_constant, load_float, store_float
from ..common.common import gated
from .prefill_sm80 import source_of

UNIT = 1  # constants of the launch
ACCUMULATE = GATED = EXPERTS = 0


@device
def scale_of(scales, sources, place, end):
    """The scale of the row of x that is at a place, over UNIT."""
    scale = 0.0
    if place < end:
        scale = load_float(scales + 4 * source_of(sources, place)) * (1.0 / UNIT)
    return scale


@device
def load_inside(address, inside):
    value = 0.0
    if inside:
        value = load_float(address)
    return value


@device
def load_four(address, stride, row, end, output, n_out):
    """What is at the outputs `output` and 8 further of this row and the next, 0 where these end."""
    here, further = row < end, row + 1 < end
    first, second = output < n_out, output + 8 < n_out
    return (
        load_inside(address, here & first),
        load_inside(address + stride, further & first),
        load_inside(address + 32, here & second),
        load_inside(address + stride + 32, further & second),
    )


@device
def store_inside(address, inside, value, up, before):
    if inside:
        if GATED:
            value = gated(value, up)
        if ACCUMULATE:
            value = value + before
        store_float(address, value)


@device
def store_four(
    address, stride, row, end, output, n_out, value: registers(4), up: registers(4), before: registers(4)
):
    """Results where `load_four` loads."""
    here, further = row < end, row + 1 < end
    first, second = output < n_out, output + 8 < n_out
    store_inside(address, here & first, value[0], up[0], before[0])
    store_inside(address + stride, further & first, value[1], up[1], before[1])
    store_inside(address + 32, here & second, value[2], up[2], before[2])
    store_inside(address + stride + 32, further & second, value[3], up[3], before[3])


@device
def bias_of(bias, output, n_out):
    value = 0.0
    if output < n_out:
        value = load_constant(bias + 4 * output)
    return value
