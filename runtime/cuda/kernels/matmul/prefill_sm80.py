"""Prefill products with block-quantised weights for compute capability 8.0 and above, with `mma.sync`.

A block computes 128 outputs of 128 rows, each of its 8 warps 64 outputs of 32 rows. The columns are taken 64
at a time, which are two pieces of each row of weights (see weights/packing.py). Two threads share a matrix
row: each loads a piece while the previous columns are multiplied, dequantises it to float16 and writes it to
shared memory; the scales of a chunk of four blocks serve two such steps. Activations are float16 in the
column order of pieces, and `cp.async` copies them to shared memory. Both operands have rows of 128 bytes
there, whose 16-byte parts are permuted by an exclusive or with the row's number, so that neither stores nor
`ldmatrix` have bank conflicts. Both are double-buffered.
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    barrier,
    block_x,
    block_y,
    commit_copies,
    copy_async,
    launch_dependents,
    ldmatrix,
    load_constant,
    load_float,
    load_int,
    mma_f16,
    pack_f16,
    shared,
    shift_right,
    shuffle_xor,
    store_float,
    store_shared_int4,
    thread,
    wait_copies,
    wait_for_grid,
)
from ..common.common import activate
from .prefill_epilogue import PrefillArguments, source_of
from .prefill_mma import four_weights

LOAD_CODES = UNPACK_CODES = LOAD_SCALES = UNPACK_SCALES = activate
CODE_WORDS = SCALE_WORDS = TWO_SCALES = MINIMUM = UNIT = BIAS = ACCUMULATE = EXPERTS = PDL = (
    0  # constants of the launch
)
TILE = 16384  # bytes of 128 rows of 64 float16 in shared memory


@device
def factors_of_row(tile, pieces, piece):
    """The factors a, b, a', b' of the four blocks of a chunk, each as the same float16 twice: [4, 4].

    Each of the two threads of a row loads those of two blocks, and they exchange them.
    """
    odd = thread() & 1
    scale = registers(SCALE_WORDS)
    own = registers(4)
    found = registers((4, 4), 0)
    for i in static(2):
        at = (piece & -4) + 2 * i + odd
        scale[()] = LOAD_SCALES(tile, pieces, at)
        own[()] = UNPACK_SCALES(*scale[()], at)
        for j in static(4):
            if (j < 2 or TWO_SCALES) and (j % 2 == 0 or MINIMUM):
                other = shuffle_xor(own[j], 1)
                first = other if odd else own[j]
                second = own[j] if odd else other
                found[2 * i, j] = pack_f16(first, first)
                found[2 * i + 1, j] = pack_f16(second, second)
    return found[()]


@device
def store_piece(to, row, first, codes: registers(CODE_WORDS), f: registers((4, 4))):
    """Dequantise a piece into a row of the tile: 16 bytes for each of its four blocks, from part
    `first` on.
    """
    w = registers(8)
    w[()] = UNPACK_CODES(*codes[()])
    for b in static(4):
        front, back = w[2 * b], w[2 * b + 1]
        store_shared_int4(
            to + place(row, first + b),
            *four_weights(front, f[b, 0], f[b, 1]),
            *four_weights(back, f[b, 2 * TWO_SCALES], f[b, 2 * TWO_SCALES + 1]),
        )


@device
def place(row, part):
    """The offset of a 16-byte part of a row in a tile."""
    return 128 * row + 16 * (part ^ (row & 7))


def prefill_matmul_sm80(args: PrefillArguments):
    """out = (x @ weightsᵀ) · scales + bias, plus the previous `out` with ACCUMULATE.

    Grid: (⌈rows / 128⌉, ⌈n_out / 128⌉), blocks of 256 threads; shared memory: 65536 bytes. With EXPERTS,
    block x takes tile x of `args.tiles`, if there are so many, and its expert's matrix.
    """
    weights = args.weights
    bias = args.bias
    t = thread()
    lane = t & 31
    warp = shift_right(t, 5)
    steps = (args.blocks + 3) // 4 * 2
    pieces = 32 * steps
    a_row = shift_right(t, 1)
    base = block_x() * 128  # the first row, and the row behind the last
    end = args.rows
    if EXPERTS:
        if PDL:
            launch_dependents()
            wait_for_grid()
        if block_x() >= load_int(args.tiles):
            return
        tile = args.tiles + 16 + 16 * block_x()
        expert = load_int(tile)
        base = load_int(tile + 4)
        end = base + load_int(tile + 8)
        weights = weights + expert * args.expert_bytes
        bias = bias + 4 * expert * args.n_out
    at = block_y() * 128 + a_row
    if at >= args.n_out:
        at = args.n_out - 1
    source = weights + shift_right(at, 4) * args.tile_bytes
    piece = 4 * (at & 15) + (t & 1)
    if PDL and not EXPERTS:
        launch_dependents()
        wait_for_grid()
    acc = registers((4, 4, 4), 0.0)
    codes = registers(CODE_WORDS)
    codes[()] = LOAD_CODES(source, pieces, piece)
    f = registers((4, 4))
    f[()] = factors_of_row(source, pieces, piece)
    for i in static(4):
        b_row = shift_right(t, 3) + 32 * i
        line = base + b_row
        copied = 16
        if line >= end:
            copied = 0
            line = 0
        line = source_of(args.sources, line)
        copy_async(
            shared() + 2 * TILE + place(b_row, t & 7),
            args.x.address + line * args.x.stride + 16 * (t & 7),
            copied,
        )
    commit_copies()
    for step in range(steps):
        stage = (step & 1) * TILE
        store_piece(shared() + stage, a_row, 4 * (t & 1), *codes[()], *f[()])
        wait_copies()
        barrier()
        if step + 1 < steps:
            piece = 64 * shift_right(step + 1, 1) + 4 * (at & 15) + 2 * ((step + 1) & 1) + (t & 1)
            codes[()] = LOAD_CODES(source, pieces, piece)
            if step & 1:
                f[()] = factors_of_row(source, pieces, piece)
            for i in static(4):
                b_row = shift_right(t, 3) + 32 * i
                line = base + b_row
                copied = 16
                if line >= end:
                    copied = 0
                    line = 0
                line = source_of(args.sources, line)
                copy_async(
                    shared() + 2 * TILE + (TILE - stage) + place(b_row, t & 7),
                    args.x.address + line * args.x.stride + 128 * (step + 1) + 16 * (t & 7),
                    copied,
                )
            commit_copies()
        m0 = (warp & 1) * 64 + (lane & 7) + ((lane >> 3) & 1) * 8
        n0 = (warp >> 1) * 32 + (lane & 7) + (lane >> 4) * 8
        if base + (warp >> 1) * 32 < end:
            for k in static(4):
                fragment = registers((4, 4))
                for m in static(4):
                    fragment[m] = ldmatrix(shared() + stage + place(m0 + 16 * m, 2 * k + (lane >> 4)))
                g = registers((4, 2))
                for n in static(2):
                    g[2 * n, 0], g[2 * n, 1], g[2 * n + 1, 0], g[2 * n + 1, 1] = ldmatrix(
                        shared() + 2 * TILE + stage + place(n0 + 16 * n, 2 * k + ((lane >> 3) & 1))
                    )
                for m in static(4):
                    for n in static(4):
                        acc[m, n] = mma_f16(*fragment[m], *g[n], *acc[m, n])
    for m in static(4):
        for n in static(4):
            for i in static(4):
                output = block_y() * 128 + (warp & 1) * 64 + 16 * m + (lane >> 2) + 8 * (i // 2)
                row = base + (warp >> 1) * 32 + 8 * n + 2 * (lane & 3) + i % 2
                if row < end and output < args.n_out:
                    to = args.out.address + row * args.out.stride + 4 * output
                    scale = load_float(args.scales + 4 * source_of(args.sources, row)) * (1.0 / UNIT)
                    value = acc[m, n, i] * scale
                    if BIAS:
                        value = value + load_constant(bias + 4 * output)
                    if ACCUMULATE:
                        value = value + load_float(to)
                    store_float(to, value)
