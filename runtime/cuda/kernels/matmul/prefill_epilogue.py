"""Arguments and epilogue of prefill products: row scales, activation of the gate, bias, and residual."""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers
from ...ptx import load_constant, load_float, load_int, store_float
from ..common.common import gated

# Constants of the launch. EXPERTS: 0 a plain product, 1 the rows of x are sorted by expert, 2 they are not,
# and
# `sources` has the row of each place (see experts/moe_permute.py). UNIT: divisor of all products.
UNIT = 1
ACCUMULATE = GATED = EXPERTS = 0


class PrefillArguments(KernelArguments):
    """Arguments of a prefill product.

    `weights` is a packed matrix [n_out, 32 · blocks] with `tile_bytes` bytes for 16 rows (see
    weights/packing.py). `x` is float16 [rows, columns padded with zeros to a multiple of 128] in the order of
    `convert_to_f16`, and `scales` float32 [rows] are what its rows are to be multiplied by. `bias` is float32
    [n_out], `out` float32 [rows, n_out]. `tiles` and `sources` are those of `permute_by_expert`, whose
    experts' matrices are `expert_bytes` apart and whose biases are float32 [experts, n_out].
    """

    weights: int
    tile_bytes: int
    blocks: int
    n_out: int
    x: Region
    scales: int
    rows: int
    bias: int = 0
    out: Region
    tiles: int = 0
    sources: int = 0
    expert_bytes: int = 0


@device
def source_of(sources, place):
    """The row of x that belongs to a place."""
    if EXPERTS == 2:
        row = load_int(sources + 4 * place)
    else:
        row = place
    return row


@device
def scale_of(scales, sources, place, end):
    """The scale of the row of x at a place, divided by UNIT; 0 from `end` on."""
    scale = 0.0
    if place < end:
        scale = load_float(scales + 4 * source_of(sources, place)) * (1.0 / UNIT)
    return scale


@device
def load_inside(address, inside):
    """A float32, or 0 if it is not `inside` the matrix."""
    value = 0.0
    if inside:
        value = load_float(address)
    return value


@device
def load_four(address, stride, row, end, output, n_out):
    """Elements [row, output], [row + 1, output], [row, output + 8] and [row + 1, output + 8] of a matrix.

    `address` is that of the first one. Rows from `end` and outputs from `n_out` on are 0.
    """
    upper, lower = row < end, row + 1 < end
    left, right = output < n_out, output + 8 < n_out
    return (
        load_inside(address, upper & left),
        load_inside(address + stride, lower & left),
        load_inside(address + 32, upper & right),
        load_inside(address + stride + 32, lower & right),
    )


@device
def store_inside(address, inside, value, up, before):
    """Store a result, gated with `up` or added to `before`, if it is `inside` the matrix."""
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
    """Store the four results of a lane where `load_four` loads them."""
    upper, lower = row < end, row + 1 < end
    left, right = output < n_out, output + 8 < n_out
    store_inside(address, upper & left, value[0], up[0], before[0])
    store_inside(address + stride, lower & left, value[1], up[1], before[1])
    store_inside(address + 32, upper & right, value[2], up[2], before[2])
    store_inside(address + stride + 32, lower & right, value[3], up[3], before[3])


@device
def bias_of(bias, output, n_out):
    """The bias of an output; 0 from `n_out` on."""
    value = 0.0
    if output < n_out:
        value = load_constant(bias + 4 * output)
    return value
