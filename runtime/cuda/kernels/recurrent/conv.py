"""The causal depthwise convolution of recurrent layers: see `ops.CausalConv`.

`causal_conv` walks through the rows of any sequences; `conv_prefill` takes the many rows of one prompt in
splits that do not wait for each other, after `conv_prefill_edges` has kept the rows in front of each split.
The state of a sequence is its last TAPS - 1 rows, float32 [TAPS - 1, channels], the oldest first.

Constants:
    TAPS  rows that a result depends on
    BIAS  1: a bias is added
    SILU  1: the result is x · sigmoid(x)
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import block_x, block_y, load_constant, load_float, load_int, store_float, thread
from ..common.common import begin, sigmoid
from .state import SequenceStates, state_of

TAPS = BIAS = SILU = 0
SPLIT = 32  # rows of a split
AHEAD = 8  # rows that are loaded at once


class ConvArguments(KernelArguments):
    """What `causal_conv` takes."""

    x: Region  # float32 [rows, channels]
    out: Region  # may be x
    weight: int  # float32 [channels, TAPS]
    bias: int  # float32 [channels]
    state: SequenceStates
    rows: int
    channels: int


class ConvEdgesArguments(KernelArguments):
    """What `conv_prefill_edges` takes."""

    x: Region  # float32 [rows, channels]
    edges: Region  # float32 [splits, TAPS - 1, channels]
    state: SequenceStates
    rows: int
    channels: int


class ConvPrefillArguments(KernelArguments):
    """What `conv_prefill` takes."""

    x: Region  # float32 [rows, channels]
    out: Region  # may be x
    weight: int  # float32 [channels, TAPS]
    bias: int  # float32 [channels]
    edges: Region  # from `conv_prefill_edges`
    rows: int
    channels: int


@device
def convolved(weights: registers(TAPS), window: registers(TAPS), bias):
    """A channel's result of the rows of `window`, the oldest first."""
    total = bias
    for j in static(TAPS):
        total = total + weights[j] * window[j]
    if SILU:
        total = total * sigmoid(total)
    return total


def causal_conv(args: ConvArguments) -> None:
    """The convolution of a step's rows, in order; a row's sequence may differ from the one before.

    Grid: (channels / 128), of 128 threads: a thread takes a channel, and keeps the window of the current
    sequence in registers; it stores the state when the next row belongs to another sequence.
    """
    begin()
    c = block_x() * 128 + thread()
    if c < args.channels:
        weights = registers(TAPS)
        for j in static(TAPS):
            weights[j] = load_constant(args.weight + 4 * (c * TAPS + j))
        bias = 0.0
        if BIAS:
            bias = load_constant(args.bias + 4 * c)
        window = registers(TAPS, 0.0)  # the rows before, the oldest first, and the present row
        current = -1
        for start in range(0, args.rows, AHEAD):
            ahead = registers(AHEAD)
            for u in static(AHEAD):
                line = start + u
                if line >= args.rows:
                    line = args.rows - 1
                ahead[u] = load_float(args.x.address + line * args.x.stride + 4 * c)
            for u in static(AHEAD):
                line = start + u
                if line < args.rows:
                    sequence = load_int(args.state.sequences + 4 * line)
                    if sequence != current:
                        if current >= 0:
                            for j in static(TAPS - 1):
                                store_float(
                                    state_of(args.state, current) + 4 * (j * args.channels + c), window[j]
                                )
                        current = sequence
                        for j in static(TAPS - 1):
                            window[j] = 0.0
                        if load_int(args.state.positions + 4 * line) > 0:
                            for j in static(TAPS - 1):
                                window[j] = load_float(
                                    state_of(args.state, current) + 4 * (j * args.channels + c)
                                )
                    window[TAPS - 1] = ahead[u]
                    total = convolved(*weights[()], *window[()], bias)
                    for j in static(TAPS - 1):
                        window[j] = window[j + 1]
                    store_float(args.out.address + line * args.out.stride + 4 * c, total)
        if current >= 0:
            for j in static(TAPS - 1):
                store_float(state_of(args.state, current) + 4 * (j * args.channels + c), window[j])


def conv_prefill_edges(args: ConvEdgesArguments) -> None:
    """Copy the TAPS - 1 rows in front of each split to `edges`, because `conv_prefill` may write over them,
    and update the state.

    Grid: (channels / 128, splits), of 128 threads: a thread takes a channel of a split.
    """
    begin()
    c = block_x() * 128 + thread()
    if c < args.channels:
        window = registers(TAPS - 1, 0.0)
        if block_y() > 0:
            for j in static(TAPS - 1):
                window[j] = load_float(
                    args.x.address + (block_y() * SPLIT + j - (TAPS - 1)) * args.x.stride + 4 * c
                )
        else:
            of_state = state_of(args.state, load_int(args.state.sequences)) + 4 * c
            if load_int(args.state.positions) > 0:
                for j in static(TAPS - 1):
                    window[j] = load_float(of_state + 4 * j * args.channels)
            new = registers(TAPS - 1, 0.0)
            for j in static(TAPS - 1):
                line = args.rows + j - (TAPS - 1)
                if line >= 0:
                    new[j] = load_float(args.x.address + line * args.x.stride + 4 * c)
                for i in static(j + 1, TAPS - 1):
                    if i == j + args.rows:
                        new[j] = window[i]
            for j in static(TAPS - 1):
                store_float(of_state + 4 * j * args.channels, new[j])
        for j in static(TAPS - 1):
            store_float(
                args.edges.address + block_y() * args.edges.stride + 4 * (j * args.channels + c), window[j]
            )


def conv_prefill(args: ConvPrefillArguments) -> None:
    """The convolution of the rows of one prompt.

    Grid: (channels / 128, splits), of 128 threads: a thread takes a channel of a split of SPLIT rows.
    """
    begin()
    c = block_x() * 128 + thread()
    if c < args.channels:
        weights = registers(TAPS)
        for j in static(TAPS):
            weights[j] = load_constant(args.weight + 4 * (c * TAPS + j))
        bias = 0.0
        if BIAS:
            bias = load_constant(args.bias + 4 * c)
        window = registers(TAPS, 0.0)  # the rows before, the oldest first, and the present row
        for j in static(TAPS - 1):
            window[j] = load_float(
                args.edges.address + block_y() * args.edges.stride + 4 * (j * args.channels + c)
            )
        end = (block_y() + 1) * SPLIT
        if end > args.rows:
            end = args.rows
        for start in range(block_y() * SPLIT, end, AHEAD):
            ahead = registers(AHEAD)
            for u in static(AHEAD):
                line = start + u
                if line >= end:
                    line = end - 1
                ahead[u] = load_float(args.x.address + line * args.x.stride + 4 * c)
            for u in static(AHEAD):
                window[TAPS - 1] = ahead[u]
                total = convolved(*weights[()], *window[()], bias)
                for j in static(TAPS - 1):
                    window[j] = window[j + 1]
                if start + u < end:
                    store_float(args.out.address + (start + u) * args.out.stride + 4 * c, total)
