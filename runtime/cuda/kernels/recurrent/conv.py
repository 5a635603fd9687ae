"""A convolution over the many rows of one prompt, cut into spans that do not wait for each other.

See `runtime/ops/recurrent.py`; `recurrent.py` has what few rows, or rows of several sequences, take.
"""

from __future__ import annotations

from ...compile.stage import registers, static
from ...ptx import block_x, block_y, load_float, load_int, load_weight, store_float, thread
from ..common.common import begin, sigmoid

TAPS = BIAS = SILU = 0  # constants of the launch
SPAN = 32  # rows that a thread takes
AHEAD = 8  # rows that are loaded at once


def conv_edges(x, x_stride, edges, edges_stride, state, state_bytes, sequences, positions, rows, channels):
    """Keep the rows before each span, which `conv_spans` may write over, and bring the state up to date.

    `edges` is [spans, TAPS - 1, channels]. Grid: (channels / 128, spans), of 128 threads.
    """
    begin()
    c = block_x() * 128 + thread()
    if c < channels:
        held = registers(TAPS - 1, 0.0)
        if block_y() > 0:
            for j in static(TAPS - 1):
                held[j] = load_float(x + (block_y() * SPAN + j - (TAPS - 1)) * x_stride + 4 * c)
        else:
            own = state + load_int(sequences) * state_bytes + 4 * c
            if load_int(positions) > 0:
                for j in static(TAPS - 1):
                    held[j] = load_float(own + 4 * j * channels)
            new = registers(TAPS - 1, 0.0)
            for j in static(TAPS - 1):
                line = rows + j - (TAPS - 1)
                if line >= 0:
                    new[j] = load_float(x + line * x_stride + 4 * c)
                for i in static(j + 1, TAPS - 1):
                    if i == j + rows:
                        new[j] = held[i]
            for j in static(TAPS - 1):
                store_float(own + 4 * j * channels, new[j])
        for j in static(TAPS - 1):
            store_float(edges + block_y() * edges_stride + 4 * (j * channels + c), held[j])


def conv_spans(x, x_stride, out, out_stride, weight, bias, edges, edges_stride, rows, channels):
    """The convolution; `out` may be x. Grid: (channels / 128, spans), of 128 threads."""
    begin()
    c = block_x() * 128 + thread()
    if c < channels:
        w = registers(TAPS)
        for j in static(TAPS):
            w[j] = load_weight(weight + 4 * (c * TAPS + j))
        first = 0.0
        if BIAS:
            first = load_weight(bias + 4 * c)
        held = registers(TAPS, 0.0)  # the rows before, the oldest first, and the present one
        for j in static(TAPS - 1):
            held[j] = load_float(edges + block_y() * edges_stride + 4 * (j * channels + c))
        end = (block_y() + 1) * SPAN
        if end > rows:
            end = rows
        for start in range(block_y() * SPAN, end, AHEAD):
            ahead = registers(AHEAD)
            for u in static(AHEAD):
                line = start + u
                if line >= end:
                    line = end - 1
                ahead[u] = load_float(x + line * x_stride + 4 * c)
            for u in static(AHEAD):
                held[TAPS - 1] = ahead[u]
                total = first
                for j in static(TAPS):
                    total = total + w[j] * held[j]
                for j in static(TAPS - 1):
                    held[j] = held[j + 1]
                if SILU:
                    total = total * sigmoid(total)
                if start + u < end:
                    store_float(out + (start + u) * out_stride + 4 * c, total)
