"""Mamba-2's selective scan over the rows of one prompt, in chunks of 4 rows: see `chunk4.py` and
`ops.StateScan`.

Dao and Gu 2024, "Transformers are SSMs" (Mamba-2).

Constants besides those of `chunk4.py`:
    WARPS  of a block
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import registers, static
from ...ptx import (
    bits_xor,
    block_x,
    block_y,
    div_u32,
    exp2,
    load_constant,
    load_float,
    load_float4,
    load_int,
    shift_right,
    shuffle_xor,
    store_float,
    store_float4,
    thread,
    warp_barrier,
)
from ..common.common import begin
from .chunk4 import column_sum, load_chunk, load_part, row_sum, updated_state
from .state import LOG2_E, SequenceStates, load_spread, softplus, state_of

WARPS = PARTS = 0
SIZE = 28  # coefficients of a head and a chunk


class ScanChunksArguments(KernelArguments):
    """What `scan_chunks` takes; fields as in `scan.ScanArguments`."""

    xbc: Region
    step: Region
    a: int
    skip: int
    step_bias: int
    step_scale: float
    groups: int
    heads: int
    head_dim: int
    state_size: int
    coefficients: int  # float32 [chunks, heads, SIZE]
    rows: int


class ScanPrefillArguments(KernelArguments):
    """What `scan_prefill` takes; fields as in `scan.ScanArguments`."""

    xbc: Region
    coefficients: int  # float32 [chunks, heads, SIZE]
    out: Region
    groups: int
    heads: int
    head_dim: int
    state_size: int
    state: SequenceStates
    rows: int


def scan_chunks(args: ScanChunksArguments) -> None:
    """The coefficients of all chunks.

    Grid: (groups, chunks / WARPS), of 32 · WARPS threads: a warp takes a chunk. PARTS counts 32 numbers of B
    here, state_size / 32.

    With g_j the product of a head's decays from the first row of the chunk to row j, in four numbers each:
        0    dt_j g_3 / g_j, the factor of x_j ⊗ B_j where it is added to S
        4    g_3 and zeros
        8    4 × 4: how often the output of each row takes x_i
        24   g_j, the factor of S @ C_j
    """
    begin()
    head_dim, size = args.head_dim, args.state_size
    lane = thread() & 31
    group = block_x()
    chunk = block_y() * WARPS + shift_right(thread(), 5)
    if 4 * chunk < args.rows:
        b = registers((4, PARTS), 0.0)
        c = registers((4, PARTS), 0.0)
        for j in static(4):
            if 4 * chunk + j < args.rows:
                row = (
                    args.xbc.address
                    + (4 * chunk + j) * args.xbc.stride
                    + 4 * (args.heads * head_dim + group * size)
                )
                for s in static(PARTS):
                    b[j, s] = load_spread(row, lane, s, size)
                    c[j, s] = load_spread(row + 4 * args.groups * size, lane, s, size)
        cb = registers((4, 4), 0.0)
        for j in static(4):
            for s in static(PARTS):
                for i in static(j + 1):
                    cb[j, i] = cb[j, i] + c[j, s] * b[i, s]
        for bit in static(5):
            for j in static(4):
                for i in static(j + 1):
                    cb[j, i] = cb[j, i] + shuffle_xor(cb[j, i], 1 << bit)
        group_heads = div_u32(args.heads, args.groups)
        for n in range(lane, group_heads, 32):
            head = group * group_heads + n
            a = load_constant(args.a + 4 * head) * LOG2_E
            bias = load_constant(args.step_bias + 4 * head)
            dt = registers(4, 0.0)
            for j in static(4):
                row = 4 * chunk + j
                if row < args.rows:
                    raw_step = load_float(args.step.address + row * args.step.stride + 4 * head)
                    dt[j] = softplus(raw_step * args.step_scale + bias)
            g = registers(4)
            log_decays = 0.0
            for j in static(4):
                log_decays = log_decays + a * dt[j]
                g[j] = exp2(log_decays)
            take = registers((4, 4), 0.0)
            for i in static(4):
                log_decays = 0.0
                take[i, i] = dt[i]
                for j in static(i + 1, 4):
                    log_decays = log_decays + a * dt[j]
                    take[j, i] = exp2(log_decays) * dt[i]
            to = args.coefficients + 4 * SIZE * (chunk * args.heads + head)
            store_float4(to, *take[3])
            store_float4(to + 16, g[3], 0.0, 0.0, 0.0)
            for j in static(4):
                for i in static(j + 1):
                    take[j, i] = take[j, i] * cb[j, i]
                take[j, j] = take[j, j] + load_constant(args.skip + 4 * head)
                store_float4(to + 32 + 16 * j, *take[j])
                store_float(to + 96 + 4 * j, g[j])


def scan_prefill(args: ScanPrefillArguments) -> None:
    """The output of all rows, and the state after the last row.

    Grid: (head_dim / (8 · WARPS), heads), of 32 · WARPS threads: half a warp takes four rows of the state
    [head_dim, state_size], which are the columns of `chunk4.py`.

    With S before a chunk, the output of row j is S @ C_j + Σ x_i over i <= j, and the next S = g_3 · S +
    Σ x_i ⊗ B_i, each term times its coefficient.
    """
    begin()
    head_dim, size = args.head_dim, args.state_size
    lane = thread() & 31
    lane_column = lane & 3
    lane_part = 4 * (lane & 15)
    head = block_y()
    base = 8 * (block_x() * WARPS + shift_right(thread(), 5)) + 4 * shift_right(lane, 4)
    group = div_u32(head, div_u32(args.heads, args.groups))
    if base - 4 * shift_right(lane, 4) < head_dim:
        of_head = state_of(args.state, load_int(args.state.sequences)) + 4 * head * head_dim * size
        state = registers((4, PARTS, 4), 0.0)
        column = registers(4)
        for c in static(4):
            column[c] = base + bits_xor(lane_column, c)
            if column[c] >= head_dim:
                column[c] = head_dim - 1
            if load_int(args.state.positions) > 0:
                for s in static(PARTS):
                    state[c, s] = load_part(of_head + 4 * column[c] * size, lane_part + 64 * s, size)
        of_x = args.xbc.address + 4 * head * head_dim
        of_b = args.xbc.address + 4 * (args.heads * head_dim + group * size)
        of_c = of_b + 4 * args.groups * size
        b = registers((4, PARTS, 4))
        read = registers((4, PARTS, 4))  # C
        after = registers((4, PARTS, 4))  # B of the next chunk
        b[()], read[()] = load_chunk(of_b, of_c, args.xbc.stride, 0, args.rows, lane_part, size)
        lane_row = shift_right(lane, 2) & 3  # the row of a chunk whose output this lane stores
        for t in range(0, args.rows, 4):
            at = args.coefficients + 4 * SIZE * (shift_right(t, 2) * args.heads + head)
            add = registers((1, 4))
            add[0] = load_float4(at)
            decay = load_float(at + 16)
            of_new = registers((1, 4))
            of_new[0] = load_float4(at + 32 + 16 * lane_row)
            state_factor = load_float(at + 96 + 4 * lane_row)
            x = registers((4, 4))
            for j in static(4):
                row = t + j
                if row >= args.rows:
                    row = args.rows - 1
                for c in static(4):
                    x[j, c] = load_float(of_x + row * args.xbc.stride + 4 * column[c])
            c_state = registers((4, 4), 0.0)
            for s in static(PARTS):
                for i in static(4):
                    for j in static(4):
                        for c in static(4):
                            c_state[j, c] = c_state[j, c] + read[j, s, i] * state[c, s, i]
            after[()], read[()] = load_chunk(of_b, of_c, args.xbc.stride, t + 4, args.rows, lane_part, size)
            warp_barrier()  # otherwise ptxas moves some of these loads to where they are used
            for j in static(4):
                c_state[j, 0] = column_sum(*c_state[j])
            y = row_sum(c_state[0, 0], c_state[1, 0], c_state[2, 0], c_state[3, 0], lane)
            y = y * state_factor
            for j in static(4):
                y = y + of_new[0, j] * x[j, 0]
            if t + lane_row < args.rows:
                if base + lane_column < head_dim:
                    store_float(
                        args.out.address
                        + (t + lane_row) * args.out.stride
                        + 4 * (head * head_dim + column[0]),
                        y,
                    )
            for j in static(4):
                for c in static(4):
                    x[j, c] = x[j, c] * add[0, j]
            state[()] = updated_state(*state[()], decay, *b[()], *x[()])
            b[()] = after[()]
        for c in static(4):
            if base + bits_xor(lane_column, c) < head_dim:
                for s in static(PARTS):
                    if lane_part + 64 * s < size:
                        store_float4(of_head + 4 * (column[c] * size + lane_part + 64 * s), *state[c, s])
