"""Products of many rows with block-quantised weights, on tensor cores.

A block makes 128 outputs of 128 rows. Weights are unpacked to halves in shared memory, 64 columns at a time,
by the threads that have loaded them while the columns before were multiplied; activations, halves already,
come there by themselves. Both tiles have 128-byte rows whose 16-byte pieces are exchanged by the row's
number, so that neither writing nor `ldmatrix` meets a bank twice. 8 warps take 64 outputs of 32 rows each.
"""

from __future__ import annotations

from ..ptx import (
    add_halves,
    barrier,
    bits_xor,
    block_x,
    block_y,
    commit_copies,
    copy_async,
    fma_halves,
    let_next_start,
    load_float,
    load_int,
    load_matrices,
    load_weight,
    mma_halves,
    pack_halves,
    permute,
    shared,
    shift_right,
    store_float,
    store_shared_int4,
    thread,
    wait_copies,
    wait_for_grid,
)
from ..stage import device, registers, static
from .common import activate

LOAD = UNPACK = activate
RAW = UNIT = BIAS = ACCUMULATE = EXPERTS = PDL = 0  # constants of the launch
TILE = 16384  # bytes of 128 rows of 64 halves
SIGNS = 0x80808080
MAGIC = 0x64646464  # the upper bytes of halves from 1024 on
LESS = 0xE480E480  # -1152, twice: what such a half is too much for a signed byte whose sign was turned


@device
def two_weights(codes, selector, a, b):
    """a · code + b of two of four signed bytes, as halves."""
    return fma_halves(add_halves(permute(bits_xor(codes, SIGNS), MAGIC, selector), LESS), a, b)


@device
def store_eight(address, first, second, a, b):
    store_shared_int4(
        address,
        two_weights(first, 0x4140, a, b),
        two_weights(first, 0x4342, a, b),
        two_weights(second, 0x4140, a, b),
        two_weights(second, 0x4342, a, b),
    )


@device
def place(row, piece):
    """Where a 16-byte piece of a row lies in a tile."""
    return 128 * row + 16 * (piece ^ (row & 7))


@device
def source_of(sources, place):
    """The row of x that comes to a place; `sources` where rows are dealt out to experts."""
    if EXPERTS == 2:
        line = load_int(sources + 4 * place)
    else:
        line = place
    return line


def tiled_matmul(
    weights,
    row_bytes,
    blocks,
    n_out,
    x,
    x_stride,
    scales,
    rows,
    bias,
    out,
    out_stride,
    tiles,
    sources,
    expert_bytes,
):
    """out = (x @ weightsᵀ) · scales + bias. Grid: (rows / 128, outputs / 128), of 256 threads.

    x is halves [rows, columns padded with zeros to a multiple of 64], scales float32 [rows]. With EXPERTS a
    block takes a tile that `experts.deal` has made, if there are so many; 1: x is sorted by expert, 2:
    `sources` are its rows.
    """
    t = thread()
    lane = t & 31
    warp = shift_right(t, 5)
    steps = (blocks + 1) // 2
    a_row = shift_right(t, 1)
    base = block_x() * 128  # the first row, and the row behind the last
    end = rows
    if EXPERTS:
        if PDL:
            let_next_start()
            wait_for_grid()
        if block_x() >= load_int(tiles):
            return
        tile = tiles + 16 + 16 * block_x()
        expert = load_int(tile)
        base = load_int(tile + 4)
        end = base + load_int(tile + 8)
        weights = weights + expert * expert_bytes
        bias = bias + 4 * expert * n_out
    at = block_y() * 128 + a_row
    if at >= n_out:
        at = n_out - 1
    source = weights + at * row_bytes
    if PDL and not EXPERTS:
        let_next_start()
        wait_for_grid()
    acc = registers((4, 4, 4), 0.0)
    raw = registers(RAW)
    block = t & 1
    raw[()] = LOAD(source, blocks, block if block < blocks else 0)
    for i in static(4):
        b_row = shift_right(t, 3) + 32 * i
        line = base + b_row
        copied = 16
        if line >= end:
            copied = 0
            line = 0
        line = source_of(sources, line)
        copy_async(shared() + 2 * TILE + place(b_row, t & 7), x + line * x_stride + 16 * (t & 7), copied)
    commit_copies()
    for step in range(steps):
        stage = (step & 1) * TILE
        w = registers(8)
        block = 2 * step + (t & 1)
        w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], a, b, a2, b2 = UNPACK(*raw[()], block)
        if block >= blocks:
            a = 0.0
            b = 0.0
            a2 = 0.0
            b2 = 0.0
        ha = pack_halves(a, a)
        hb = pack_halves(b, b)
        ha2 = pack_halves(a2, a2)
        hb2 = pack_halves(b2, b2)
        to = shared() + stage
        piece = 4 * (t & 1)
        store_eight(to + place(a_row, piece), w[0], w[1], ha, hb)
        store_eight(to + place(a_row, piece + 1), w[2], w[3], ha, hb)
        store_eight(to + place(a_row, piece + 2), w[4], w[5], ha2, hb2)
        store_eight(to + place(a_row, piece + 3), w[6], w[7], ha2, hb2)
        wait_copies()
        barrier()
        if step + 1 < steps:
            block = block + 2
            if block >= blocks:
                block = blocks - 1
            raw[()] = LOAD(source, blocks, block)
            for i in static(4):
                b_row = shift_right(t, 3) + 32 * i
                line = base + b_row
                copied = 16
                if line >= end:
                    copied = 0
                    line = 0
                line = source_of(sources, line)
                copy_async(
                    shared() + 2 * TILE + (TILE - stage) + place(b_row, t & 7),
                    x + line * x_stride + 128 * (step + 1) + 16 * (t & 7),
                    copied,
                )
            commit_copies()
        m0 = (warp & 1) * 64 + (lane & 7) + ((lane >> 3) & 1) * 8
        n0 = (warp >> 1) * 32 + (lane & 7) + (lane >> 4) * 8
        if base + (warp >> 1) * 32 < end:
            for k in static(4):
                f = registers((4, 4))
                for m in static(4):
                    f[m] = load_matrices(shared() + stage + place(m0 + 16 * m, 2 * k + (lane >> 4)))
                g = registers((4, 2))
                for n in static(2):
                    g[2 * n, 0], g[2 * n, 1], g[2 * n + 1, 0], g[2 * n + 1, 1] = load_matrices(
                        shared() + 2 * TILE + stage + place(n0 + 16 * n, 2 * k + ((lane >> 3) & 1))
                    )
                for m in static(4):
                    for n in static(4):
                        acc[m, n] = mma_halves(*f[m], *g[n], *acc[m, n])
    for m in static(4):
        for n in static(4):
            for i in static(4):
                output = block_y() * 128 + (warp & 1) * 64 + 16 * m + (lane >> 2) + 8 * (i // 2)
                row = base + (warp >> 1) * 32 + 8 * n + 2 * (lane & 3) + i % 2
                if row < end and output < n_out:
                    to = out + row * out_stride + 4 * output
                    scale = load_float(scales + 4 * source_of(sources, row)) * (1.0 / UNIT)
                    value = acc[m, n, i] * scale
                    if BIAS:
                        value = value + load_weight(bias + 4 * output)
                    if ACCUMULATE:
                        value = value + load_float(to)
                    store_float(to, value)
