"""The gated delta rule over the rows of one prompt, in chunks of 4 rows: see `chunk4.py` and `ops.DeltaRule`.

Yang et al. 2024, "Gated Delta Networks" and "Parallelizing Linear Transformers with the Delta Rule".

Constants besides those of `chunk4.py`:
    WARPS  of a block
    TILED  as in `delta.delta_rule`
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import registers, static
from ...ptx import (
    bits_xor,
    block_x,
    block_y,
    div_f32,
    div_u32,
    exp2,
    load_constant,
    load_float,
    load_float4,
    load_int,
    shift_right,
    shuffle_xor,
    sqrt,
    store_float,
    store_float4,
    thread,
    warp_barrier,
)
from ..common.common import begin, sigmoid
from .chunk4 import column_sum, load_chunk, row_sum, updated_state
from .state import LOG2_E, SequenceStates, load_spread, softplus, state_of

WARPS = PARTS = TILED = 0
SIZE = 40  # coefficients of a head and a chunk


class DeltaChunksArguments(KernelArguments):
    """What `delta_chunks` takes; fields as in `delta.DeltaArguments`."""

    qkv: Region
    beta: Region
    step: Region
    a: int
    step_bias: int
    eps: float
    groups: int
    heads: int
    key_dim: int
    inverse_root: float
    coefficients: int  # float32 [chunks, heads, SIZE]
    rows: int


class DeltaPrefillArguments(KernelArguments):
    """What `delta_prefill` takes; fields as in `delta.DeltaArguments`."""

    qkv: Region
    coefficients: int  # float32 [chunks, heads, SIZE]
    out: Region
    groups: int
    heads: int
    head_dim: int
    key_dim: int
    state: SequenceStates
    rows: int


def delta_chunks(args: DeltaChunksArguments) -> None:
    """The coefficients of all chunks.

    Grid: (groups, chunks / WARPS), of 32 · WARPS threads: a warp takes a chunk. PARTS counts 32 numbers of a
    key here, key_dim / 32.

    With g_j the product of a head's decays from the first row of the chunk to row j, in four numbers each:
        0    β_j
        4    β_j g_j / |k_j|, the factor of k_j @ S
        8    g_3 / (g_j |k_j|), the factor of k_j where it is added to S
        12   how often row j takes the new value of row i, for j, i = 1, 0; 2, 0; 2, 1; 3, 0
        16   the same for 3, 1; 3, 2; then g_3 and a 0
        20   4 × 4: how often the output of each row takes the new value of row i
        36   g_j / |q_j|, the factor of q_j @ S
    """
    begin()
    size = args.key_dim
    lane = thread() & 31
    group = block_x()
    chunk = block_y() * WARPS + shift_right(thread(), 5)
    if 4 * chunk < args.rows:
        q = registers((4, PARTS), 0.0)
        k = registers((4, PARTS), 0.0)
        for j in static(4):
            if 4 * chunk + j < args.rows:
                row = args.qkv.address + (4 * chunk + j) * args.qkv.stride + 4 * group * size
                for s in static(PARTS):
                    q[j, s] = load_spread(row, lane, s, size)
                    k[j, s] = load_spread(row + 4 * args.groups * size, lane, s, size)
        qq = registers(4, 0.0)
        qk = registers((4, 4), 0.0)
        kk = registers((4, 4), 0.0)
        for j in static(4):
            for s in static(PARTS):
                qq[j] = qq[j] + q[j, s] * q[j, s]
                for i in static(j + 1):
                    qk[j, i] = qk[j, i] + q[j, s] * k[i, s]
                    kk[j, i] = kk[j, i] + k[j, s] * k[i, s]
        for bit in static(5):  # several warp sums side by side; `warp_sum` would wait for each
            for j in static(4):
                qq[j] = qq[j] + shuffle_xor(qq[j], 1 << bit)
                for i in static(j + 1):
                    qk[j, i] = qk[j, i] + shuffle_xor(qk[j, i], 1 << bit)
                    kk[j, i] = kk[j, i] + shuffle_xor(kk[j, i], 1 << bit)
        of_q = registers(4)
        of_k = registers(4)
        for j in static(4):
            of_q[j] = div_f32(args.inverse_root, sqrt(qq[j] + args.eps))
            of_k[j] = div_f32(1.0, sqrt(kk[j, j] + args.eps))
        group_heads = div_u32(args.heads, args.groups)
        for n in range(lane, group_heads, 32):
            if TILED:
                head = n * args.groups + group
            else:
                head = group * group_heads + n
            a = load_constant(args.a + 4 * head) * LOG2_E
            bias = load_constant(args.step_bias + 4 * head)
            strength = registers(4, 0.0)
            log_decay = registers(4, 0.0)  # log2 of the decays
            for j in static(4):
                row = 4 * chunk + j
                if row < args.rows:
                    strength[j] = sigmoid(load_float(args.beta.address + row * args.beta.stride + 4 * head))
                    raw_step = load_float(args.step.address + row * args.step.stride + 4 * head)
                    log_decay[j] = a * softplus(raw_step + bias)
            g = registers(4)
            log_decays = 0.0
            for j in static(4):
                log_decays = log_decays + log_decay[j]
                g[j] = exp2(log_decays)
            take = registers((4, 4), 0.0)
            for i in static(4):
                log_decays = 0.0
                take[i, i] = of_k[i]
                for j in static(i + 1, 4):
                    log_decays = log_decays + log_decay[j]
                    take[j, i] = exp2(log_decays) * of_k[i]
            from_k = registers((4, 4), 0.0)
            from_q = registers((4, 4), 0.0)
            for j in static(4):
                for i in static(j + 1):
                    from_k[j, i] = strength[j] * (take[j, i] * kk[j, i]) * of_k[j]
                    from_q[j, i] = take[j, i] * qk[j, i] * of_q[j]
            to = args.coefficients + 4 * SIZE * (chunk * args.heads + head)
            store_float4(to, strength[0], strength[1], strength[2], strength[3])
            for j in static(4):
                store_float(to + 16 + 4 * j, strength[j] * g[j] * of_k[j])
            store_float4(to + 32, *take[3])
            store_float4(to + 48, from_k[1, 0], from_k[2, 0], from_k[2, 1], from_k[3, 0])
            store_float4(to + 64, from_k[3, 1], from_k[3, 2], g[3], 0.0)
            for j in static(4):
                store_float4(to + 80 + 16 * j, *from_q[j])
                store_float(to + 144 + 4 * j, g[j] * of_q[j])


def delta_prefill(args: DeltaPrefillArguments) -> None:
    """The output of all rows, and the state after the last row.

    Grid: (head_dim / (8 · WARPS), heads), of 32 · WARPS threads: half a warp takes four columns of the state.

    With S before a chunk, the new value of row j is u_j = β_j v_j - (k_j @ S) - Σ u_i over i < j, its output
    q_j @ S + Σ u_i over i <= j, and the next S = g_3 · S + Σ k_i ⊗ u_i, each term times its coefficient.
    """
    begin()
    head_dim, size = args.head_dim, args.key_dim
    lane = thread() & 31
    lane_column = lane & 3
    lane_part = 4 * (lane & 15)
    head = block_y()
    base = 8 * (block_x() * WARPS + shift_right(thread(), 5)) + 4 * shift_right(lane, 4)
    if TILED:
        group = head - div_u32(head, args.groups) * args.groups
    else:
        group = div_u32(head, div_u32(args.heads, args.groups))
    if base - 4 * shift_right(lane, 4) < head_dim:
        of_head = state_of(args.state, load_int(args.state.sequences)) + 4 * head * size * head_dim
        state = registers((4, PARTS, 4), 0.0)
        if load_int(args.state.positions) > 0:
            for c in static(4):
                column = base + bits_xor(lane_column, c)
                if column < head_dim:
                    for s in static(PARTS):
                        if lane_part + 64 * s < size:
                            for i in static(4):
                                key = lane_part + 64 * s + i
                                state[c, s, i] = load_float(of_head + 4 * (key * head_dim + column))
        column = base + lane_column
        if column >= head_dim:
            column = head_dim - 1
        of_q = args.qkv.address + 4 * group * size
        of_k = of_q + 4 * args.groups * size
        of_v = args.qkv.address + 4 * (2 * args.groups * size + head * head_dim + column)
        q = registers((4, PARTS, 4))
        k = registers((4, PARTS, 4))
        after = registers((4, PARTS, 4))  # k of the next chunk
        q[()], k[()] = load_chunk(of_q, of_k, args.qkv.stride, 0, args.rows, lane_part, size)
        lane_row = shift_right(lane, 2) & 3  # the row of a chunk whose output this lane stores
        for t in range(0, args.rows, 4):
            at = args.coefficients + 4 * SIZE * (shift_right(t, 2) * args.heads + head)
            coefficients = registers((5, 4))
            for n in static(5):
                coefficients[n] = load_float4(at + 16 * n)
            v = registers(4)
            for j in static(4):
                row = t + j
                if row >= args.rows:
                    row = args.rows - 1
                v[j] = load_float(of_v + row * args.qkv.stride)
            of_new = registers((1, 4))
            of_new[0] = load_float4(at + 80 + 16 * lane_row)
            state_factor = load_float(at + 144 + 4 * lane_row)
            k_state = registers((4, 4), 0.0)
            q_state = registers((4, 4), 0.0)
            for s in static(PARTS):
                for i in static(4):
                    for j in static(4):
                        for c in static(4):
                            k_state[j, c] = k_state[j, c] + k[j, s, i] * state[c, s, i]
                            q_state[j, c] = q_state[j, c] + q[j, s, i] * state[c, s, i]
            after[()], q[()] = load_chunk(of_k, of_q, args.qkv.stride, t + 4, args.rows, lane_part, size)
            warp_barrier()  # otherwise ptxas moves some of these loads to where they are used
            u = registers((4, 4))
            for j in static(4):
                k_state[j, 0] = k_state[j, 0] + shuffle_xor(k_state[j, 2], 2)
                k_state[j, 1] = k_state[j, 1] + shuffle_xor(k_state[j, 3], 2)
            for bit in static(3):
                for j in static(4):
                    if bit == 0:
                        k_state[j, 0] = k_state[j, 0] + shuffle_xor(k_state[j, 1], 1)
                    else:
                        k_state[j, 0] = k_state[j, 0] + shuffle_xor(k_state[j, 0], 2 << bit)
            for j in static(4):
                q_state[j, 0] = column_sum(*q_state[j])
            y = row_sum(q_state[0, 0], q_state[1, 0], q_state[2, 0], q_state[3, 0], lane)
            for j in static(4):
                u[j, 0] = coefficients[0, j] * v[j] - coefficients[1, j] * k_state[j, 0]
            u[1, 0] = u[1, 0] - coefficients[3, 0] * u[0, 0]
            u[2, 0] = u[2, 0] - coefficients[3, 1] * u[0, 0] - coefficients[3, 2] * u[1, 0]
            u[3, 0] = (
                u[3, 0]
                - coefficients[3, 3] * u[0, 0]
                - coefficients[4, 0] * u[1, 0]
                - coefficients[4, 1] * u[2, 0]
            )
            y = y * state_factor
            for j in static(4):
                y = y + of_new[0, j] * u[j, 0]
            for j in static(4):
                u[j, 0] = u[j, 0] * coefficients[2, j]
                u[j, 1] = shuffle_xor(u[j, 0], 1)
            for j in static(4):
                u[j, 2] = shuffle_xor(u[j, 0], 2)
                u[j, 3] = shuffle_xor(u[j, 1], 2)
            if t + lane_row < args.rows:
                if base + lane_column < head_dim:
                    store_float(
                        args.out.address + (t + lane_row) * args.out.stride + 4 * (head * head_dim + column),
                        y,
                    )
            state[()] = updated_state(*state[()], coefficients[4, 2], *k[()], *u[()])
            k[()] = after[()]
        for c in static(4):
            column = base + bits_xor(lane_column, c)
            if column < head_dim:
                for s in static(PARTS):
                    if lane_part + 64 * s < size:
                        for i in static(4):
                            key = lane_part + 64 * s + i
                            store_float(of_head + 4 * (key * head_dim + column), state[c, s, i])
