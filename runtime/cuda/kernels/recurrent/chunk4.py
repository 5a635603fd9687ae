"""What the scans over the rows of one prompt share (`delta_prefill.py`, `scan_prefill.py`): chunks of 4 rows.

A chunk is computed in one step from the state S before it: what its rows read of S, what each row takes from
the rows of the chunk before it, and what they add to S are sums of products in float32. A first kernel
computes what does not depend on S, for all chunks at once: the products of pairs of rows and the decays
between them, as sums of logarithms, so that nothing is divided by a decay. These coefficients are float32
[chunks, heads, SIZE].

Half a warp takes four columns of a head's state. Lane l of the half keeps numbers 4l … 4l + 3, 64 + 4l … of
each column, four registers a part. Its register c stands for column c ^ (l % 4): so a sum over lanes takes
few shuffles, as in each step a lane keeps the first half of its registers and sends the other half, which is
what its partner keeps. At the end a lane has the sums of column l % 4, and stores the result of row l / 4 of
the chunk.

Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule"; Dao and Gu 2024, "Transformers are
SSMs": both compute chunks of rows from products of pairs of rows.

Constants:
    PARTS  64 numbers each of a column of the state
    FULL   1: columns have exactly 64 · PARTS numbers, not fewer
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import bits_and, load_float4, shuffle_xor

PARTS = FULL = 0


@device
def load_part(vector, at, size):
    """Numbers at … at + 3 of a float32 vector of that size, which 4 divides; 0 behind its end."""
    a = 0.0
    b = 0.0
    c = 0.0
    d = 0.0
    if FULL:
        a, b, c, d = load_float4(vector + 4 * at)
    elif at < size:
        a, b, c, d = load_float4(vector + 4 * at)
    return a, b, c, d


@device
def load_chunk(first, second, stride, start, rows, at, size):
    """This lane's numbers of two vectors of each of the 4 rows from `start` on; the last row again behind it.

    `first` and `second` are the addresses of the vectors of row 0. Returns two arrays [4, PARTS, 4].
    """
    x = registers((4, PARTS, 4))
    y = registers((4, PARTS, 4))
    for j in static(4):
        row = start + j
        if row >= rows:
            row = rows - 1
        for s in static(PARTS):
            x[j, s] = load_part(first + row * stride, at + 64 * s, size)
            y[j, s] = load_part(second + row * stride, at + 64 * s, size)
    return x[()], y[()]


@device
def updated_state(state: registers((4, PARTS, 4)), decay, k: registers((4, PARTS, 4)), u: registers((4, 4))):
    """decay · S + Σ k_j ⊗ u_j over the rows j of a chunk; u[j, c] is of column c."""
    for c in static(4):
        for s in static(PARTS):
            for i in static(4):
                value = decay * state[c, s, i]
                for j in static(4):
                    value = value + k[j, s, i] * u[j, c]
                state[c, s, i] = value
    return state[()]


@device
def column_sum(a, b, c, d):
    """The sum of this lane's column over the lanes that differ in the low two bits, of its four registers."""
    a = a + shuffle_xor(c, 2)
    b = b + shuffle_xor(d, 2)
    return a + shuffle_xor(b, 1)


@device
def row_sum(a, b, c, d, lane):
    """The sum of row lane / 4 % 4 over the lanes that differ in bits 2 and 3, of the values of four rows."""
    upper = c
    second = d
    if bits_and(lane, 8) != 0:
        upper = a
        second = b
        a = c
        b = d
    a = a + shuffle_xor(upper, 8)
    b = b + shuffle_xor(second, 8)
    upper = b
    if bits_and(lane, 4) != 0:
        upper = a
        a = b
    return a + shuffle_xor(upper, 4)
