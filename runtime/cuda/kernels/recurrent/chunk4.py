"""What scans over the many rows of one prompt have in common: `delta_prompt.py`, `scan_prompt.py`.

They take four rows at once. What four rows read of the state before them, what each takes from those before
it in the four, and what they leave in the state are sums of products in float32. What does not depend on the
state is found first, for all rows at once: products of pairs of rows, and the decays between them, as sums of
logarithms, so that nothing is divided by a decay. It is float32 [rows / 4, heads, …], `pairs`.

Half a warp takes four columns of a head's state, and lane l of it numbers 4l … 4l + 3, 64 + 4l … of those.
Its register c of them stands for column c ^ (l % 4): in a sum over lanes each keeps the first half of its
registers and sends the other, which is what its partner keeps. At the end a lane has the sums of column
l % 4, and is the one that writes it for row l / 4.
"""

from __future__ import annotations

from ...compile.stage import device
from ...ptx import bits_and, load_float4, shuffle_xor

WHOLE = 0  # a constant of the launch: the state's columns have 64 · PARTS numbers, not fewer


@device
def piece(row, at, size):
    """Numbers `at` … at + 3 of a vector of that size, which 4 divides; 0 behind its end."""
    a = 0.0
    b = 0.0
    c = 0.0
    d = 0.0
    if WHOLE:
        a, b, c, d = load_float4(row + 4 * at)
    elif at < size:
        a, b, c, d = load_float4(row + 4 * at)
    return a, b, c, d


@device
def own_column(a, b, c, d):
    """Of four registers the sum of this lane's column over the lanes that differ in the low two bits."""
    a = a + shuffle_xor(c, 2)
    b = b + shuffle_xor(d, 2)
    return a + shuffle_xor(b, 1)


@device
def own_row(a, b, c, d, lane):
    """Of four rows' values the sum of row lane / 4 % 4 over the lanes that differ in bits 2 and 3."""
    other = c
    second = d
    if bits_and(lane, 8) != 0:
        other = a
        second = b
        a = c
        b = d
    a = a + shuffle_xor(other, 8)
    b = b + shuffle_xor(second, 8)
    other = b
    if bits_and(lane, 4) != 0:
        other = a
        a = b
    return a + shuffle_xor(other, 4)
