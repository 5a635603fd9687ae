"""Mamba-2's recurrence over the rows of one prompt: see `four_rows.py` and `runtime/ops/recurrent.py`."""

from __future__ import annotations

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
from .chunk4 import own_column, own_row, piece
from .recurrent import LOG2_E, part_of, softplus

# Constants of the launch. A state's column has up to 64 · PARTS numbers, in `scan_pairs` 32 · PARTS.
WARPS = PARTS = 0
SIZE = 28  # numbers of a head and four rows in `pairs`


def scan_pairs(
    xbc,
    xbc_stride,
    step,
    step_stride,
    a,
    skip,
    step_bias,
    step_scale: float,
    groups,
    heads,
    head_dim,
    size,
    pairs,
    rows,
):
    """What `scan_prompt` takes from `pairs`. Grid: (groups, rows / (4 · WARPS)); a warp takes four rows.

    With g_j the product of a head's decays up to row j of the four, in four numbers each: what x_j ⊗ B_j is
    added to S t_j g_3 / g_j times; g_3 and zeros; how often the outputs of each row take x_i; what S @ C_j is
    taken g_j times.
    """
    begin()
    lane = thread() & 31
    group = block_x()
    four = block_y() * WARPS + shift_right(thread(), 5)
    if 4 * four < rows:
        b = registers((4, PARTS), 0.0)
        c = registers((4, PARTS), 0.0)
        for j in static(4):
            if 4 * four + j < rows:
                row = xbc + (4 * four + j) * xbc_stride + 4 * (heads * head_dim + group * size)
                for s in static(PARTS):
                    b[j, s] = part_of(row, lane, s, size)
                    c[j, s] = part_of(row + 4 * groups * size, lane, s, size)
        cb = registers((4, 4), 0.0)
        for j in static(4):
            for s in static(PARTS):
                for i in static(j + 1):
                    cb[j, i] = cb[j, i] + c[j, s] * b[i, s]
        for bit in static(5):
            for j in static(4):
                for i in static(j + 1):
                    cb[j, i] = cb[j, i] + shuffle_xor(cb[j, i], 1 << bit)
        each = div_u32(heads, groups)
        for n in range(lane, each, 32):
            head = group * each + n
            rate = load_constant(a + 4 * head) * LOG2_E
            bias = load_constant(step_bias + 4 * head)
            time = registers(4, 0.0)
            for j in static(4):
                line = 4 * four + j
                if line < rows:
                    moved = load_float(step + line * step_stride + 4 * head)
                    time[j] = softplus(moved * step_scale + bias)
            g = registers(4)
            passed = 0.0
            for j in static(4):
                passed = passed + rate * time[j]
                g[j] = exp2(passed)
            take = registers((4, 4), 0.0)
            for i in static(4):
                passed = 0.0
                take[i, i] = time[i]
                for j in static(i + 1, 4):
                    passed = passed + rate * time[j]
                    take[j, i] = exp2(passed) * time[i]
            to = pairs + 4 * SIZE * (four * heads + head)
            store_float4(to, *take[3])
            store_float4(to + 16, g[3], 0.0, 0.0, 0.0)
            for j in static(4):
                for i in static(j + 1):
                    take[j, i] = take[j, i] * cb[j, i]
                take[j, j] = take[j, j] + load_constant(skip + 4 * head)
                store_float4(to + 32 + 16 * j, *take[j])
                store_float(to + 96 + 4 * j, g[j])


def scan_prompt(
    xbc,
    xbc_stride,
    pairs,
    out,
    out_stride,
    groups,
    heads,
    head_dim,
    size,
    state,
    state_bytes,
    sequences,
    positions,
    rows,
):
    """Mamba-2's recurrence, the state [head, head_dim, size]. Grid: (head_dim / (8 · WARPS), heads).

    With S before four rows, the output of row j is S @ C_j + Σ x_i over i <= j, and
    S = g_3 · S + Σ x_i ⊗ B_i, all of it as often as `pairs` says. Columns are those of S transposed.
    """
    begin()
    lane = thread() & 31
    mine = lane & 3
    part = 4 * (lane & 15)
    head = block_y()
    base = 8 * (block_x() * WARPS + shift_right(thread(), 5)) + 4 * shift_right(lane, 4)
    group = div_u32(head, div_u32(heads, groups))
    if base - 4 * shift_right(lane, 4) < head_dim:
        own = state + load_int(sequences) * state_bytes + 4 * head * head_dim * size
        memory = registers((4, PARTS, 4), 0.0)
        column = registers(4)
        for c in static(4):
            column[c] = base + bits_xor(mine, c)
            if column[c] >= head_dim:
                column[c] = head_dim - 1
            if load_int(positions) > 0:
                for s in static(PARTS):
                    memory[c, s] = piece(own + 4 * column[c] * size, part + 64 * s, size)
        of_x = xbc + 4 * head * head_dim
        of_b = xbc + 4 * (heads * head_dim + group * size)
        of_c = of_b + 4 * groups * size
        b = registers((4, PARTS, 4))
        read = registers((4, PARTS, 4))  # C
        after = registers((4, PARTS, 4))  # the next B
        for j in static(4):
            line = j
            if line >= rows:
                line = rows - 1
            for s in static(PARTS):
                b[j, s] = piece(of_b + line * xbc_stride, part + 64 * s, size)
                read[j, s] = piece(of_c + line * xbc_stride, part + 64 * s, size)
        turn = shift_right(lane, 2) & 3  # whose output this lane writes
        for t in range(0, rows, 4):
            found = pairs + 4 * SIZE * (shift_right(t, 2) * heads + head)
            add = registers((1, 4))
            add[0] = load_float4(found)
            decay = load_float(found + 16)
            mix = registers((1, 4))
            mix[0] = load_float4(found + 32 + 16 * turn)
            of_state = load_float(found + 96 + 4 * turn)
            x = registers((4, 4))
            for j in static(4):
                line = t + j
                if line >= rows:
                    line = rows - 1
                for c in static(4):
                    x[j, c] = load_float(of_x + line * xbc_stride + 4 * column[c])
            seen_by = registers((4, 4), 0.0)
            for s in static(PARTS):
                for i in static(4):
                    for j in static(4):
                        for c in static(4):
                            seen_by[j, c] = seen_by[j, c] + read[j, s, i] * memory[c, s, i]
            for j in static(4):
                line = t + 4 + j
                if line >= rows:
                    line = rows - 1
                for s in static(PARTS):
                    after[j, s] = piece(of_b + line * xbc_stride, part + 64 * s, size)
                    read[j, s] = piece(of_c + line * xbc_stride, part + 64 * s, size)
            warp_barrier()  # else the assembler moves some of these loads to where they are used
            for j in static(4):
                seen_by[j, 0] = own_column(*seen_by[j])
            seen = own_row(seen_by[0, 0], seen_by[1, 0], seen_by[2, 0], seen_by[3, 0], lane)
            seen = seen * of_state
            for j in static(4):
                seen = seen + mix[0, j] * x[j, 0]
            if t + turn < rows:
                if base + mine < head_dim:
                    store_float(out + (t + turn) * out_stride + 4 * (head * head_dim + column[0]), seen)
            for j in static(4):
                for c in static(4):
                    x[j, c] = x[j, c] * add[0, j]
            for c in static(4):
                for s in static(PARTS):
                    for i in static(4):
                        value = decay * memory[c, s, i]
                        for j in static(4):
                            value = value + b[j, s, i] * x[j, c]
                        memory[c, s, i] = value
            for j in static(4):
                for s in static(PARTS):
                    for i in static(4):
                        b[j, s, i] = after[j, s, i]
        for c in static(4):
            if base + bits_xor(mine, c) < head_dim:
                for s in static(PARTS):
                    if part + 64 * s < size:
                        store_float4(own + 4 * (column[c] * size + part + 64 * s), *memory[c, s])
