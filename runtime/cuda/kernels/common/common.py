"""Device functions of several kernels: reductions over a warp, activation functions, and the quantisation of
activations.
"""

from __future__ import annotations

from ...compile.stage import device
from ...ptx import (
    absolute,
    as_float,
    as_int,
    bits_and,
    div_f32,
    div_near,
    exp2,
    launch_dependents,
    maximum,
    minimum,
    multiply_add,
    shift_right,
    shuffle_xor,
    store_byte,
    store_float,
    thread,
    to_float,
    to_int,
    wait_for_grid,
    warp_max_u32,
    warp_sum_s32,
)

# Values of KIND: the activation functions.
SILU, GELU_TANH, GELU, RELU2, IDENTITY, TANH, SIGMOID, CLIPPED = range(1, 9)

# Constants of the launch. TOKENS: rows of quantised activations, rounded up to a power of two. LIMIT and
# ALPHA are the parameters of `CLIPPED`: see `ops.MoE`.
KIND = TOKENS = PDL = 0
LIMIT = ALPHA = 0.0


@device
def quotient(i, n):
    """i // n of a constant n, for i below 4096 and n of up to 256: without the division, which the assembler
    does not turn into a product."""
    return shift_right(multiply_add(i, (1048575 + n) // n, 0), 20)


@device
def warp_sum(value):
    """The sum over the lanes of a warp, in every lane."""
    value = value + shuffle_xor(value, 16)
    value = value + shuffle_xor(value, 8)
    value = value + shuffle_xor(value, 4)
    value = value + shuffle_xor(value, 2)
    return value + shuffle_xor(value, 1)


@device
def warp_maximum(value):
    """The maximum over the lanes of a warp, in every lane."""
    value = maximum(value, shuffle_xor(value, 16))
    value = maximum(value, shuffle_xor(value, 8))
    value = maximum(value, shuffle_xor(value, 4))
    value = maximum(value, shuffle_xor(value, 2))
    return maximum(value, shuffle_xor(value, 1))


@device
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return div_near(1.0, 1.0 + exp2(x * -1.4426950408889634))


@device
def tanh(x):
    """tanh(x), as 1 - 2 / (1 + e^2x)."""
    return 1.0 - div_near(2.0, 1.0 + exp2(x * 2.8853900817779268))


@device
def error_function(x):
    """erf within 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26)."""
    a = absolute(x)
    t = div_near(1.0, 1.0 + a * 0.3275911)
    p = ((((t * 1.061405429 - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    y = 1.0 - p * exp2(a * a * -1.4426950408889634)
    if x < 0.0:
        y = -y
    return y


@device
def activate(x):
    """The activation function KIND."""
    if KIND == 1:
        y = x * sigmoid(x)
    elif KIND == 2:
        y = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif KIND == 3:
        y = 0.5 * x * (1.0 + error_function(x * 0.7071067811865476))
    elif KIND == 4:
        y = maximum(x, 0.0)
        y = y * y
    elif KIND == 6:
        y = tanh(x)
    elif KIND == 7:
        y = sigmoid(x)
    else:
        y = x
    return y


@device
def gated(gate, up):
    """f(gate) · up with the activation function KIND; for CLIPPED the gated unit of gpt-oss: see
    `ops.MoE`.
    """
    if KIND == 8:
        gate = minimum(gate, LIMIT)
        value = gate * sigmoid(ALPHA * gate) * (maximum(-LIMIT, minimum(LIMIT, up)) + 1.0)
    else:
        value = activate(gate) * up
    return value


@device
def code_plane_bytes(blocks):
    """Bytes of a plane of codes: see `store_quantized`."""
    return 16 * TOKENS * blocks


@device
def scale_plane_bytes(blocks):
    """Bytes of a plane of scales: see `store_quantized`."""
    return 16 * TOKENS * ((blocks + 3) // 4)


@device
def join_bytes(high, low):
    """The sum of products with 16-bit codes, of the sums with their high and with their low bytes."""
    return to_float(multiply_add(high, 256, low))


@device
def store_quantized(codes, blocks, token, i, value):
    """Quantise and store a block of 32 values, one for each lane of a warp: element i of row `token`.

    The values are d · (256 · high + low), 16-bit codes in two signed bytes with one float32 scale d for each
    block. NaN and infinity make d NaN. At `codes`, the TOKENS rows of a step are interleaved in pieces of 16
    bytes, which are B fragments of `mma.sync`, and which lanes that take one block each read contiguously:

        planes t = 0 … 3    [blocks][TOKENS]: of a block the high bytes 4t …, the high bytes 16 + 4t …,
                            the low bytes 4t …, and the low bytes 16 + 4t …
        planes 4 … 7        [blocks / 4][TOKENS]: float32 of four blocks: d; d · (sum of the codes); the same
                            for the first half of each block; for the second half
    """
    # Floats without a sign are in the order of their bits.
    peak = as_float(warp_max_u32(as_int(absolute(value))))
    inverse = 0.0
    if peak > 0.0:
        inverse = div_f32(32512.0, peak)
    code = to_int(value * inverse)
    block = shift_right(i, 5)
    to = codes + bits_and(shift_right(i, 2), 3) * code_plane_bytes(blocks) + 16 * (block * TOKENS + token)
    to = to + 4 * bits_and(shift_right(i, 4), 1) + bits_and(i, 3)
    store_byte(to, (code + 128) >> 8)
    store_byte(to + 8, code)
    below = code
    if (thread() & 16) != 0:
        below = 0
    half = to_float(warp_sum_s32(below))
    total = to_float(warp_sum_s32(code))
    d = peak * 3.0757874015748033e-05 + peak * 0.0  # 1 / 32512; NaN for infinity
    if (thread() & 31) == 0:
        plane = scale_plane_bytes(blocks)
        to = codes + 4 * code_plane_bytes(blocks) + 16 * (shift_right(block, 2) * TOKENS + token)
        to = to + 4 * bits_and(block, 3)
        store_float(to, d)
        store_float(to + plane, d * total)
        store_float(to + 2 * plane, d * half)
        store_float(to + 3 * plane, d * (total - half))


@device
def begin():
    """The beginning of a kernel with programmatic dependent launch: allow the next launch to start, and wait
    until the previous one has ended.
    """
    if PDL:
        launch_dependents()
        wait_for_grid()
