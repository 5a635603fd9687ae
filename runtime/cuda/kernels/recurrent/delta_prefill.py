"""The gated delta rule over the rows of one prompt: see `four_rows.py` and `runtime/ops/recurrent.py`."""

from __future__ import annotations

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
from .chunk4 import own_column, own_row, piece
from .recurrent import LOG2_E, part_of, softplus

# Constants of the launch. A state's column has up to 64 · PARTS numbers, in `delta_pairs` 32 · PARTS.
WARPS = PARTS = TILED = 0
SIZE = 40  # numbers of a head and four rows in `pairs`


def delta_pairs(
    qkv,
    qkv_stride,
    beta,
    beta_stride,
    step,
    step_stride,
    a,
    step_bias,
    eps: float,
    groups,
    heads,
    key_dim,
    inverse_root: float,
    pairs,
    rows,
):
    """What `delta_prompt` takes from `pairs`. Grid: (groups, rows / (4 · WARPS)); a warp takes four rows.

    With g_j the product of a head's decays up to row j of the four, in four numbers each: β_j; what k_j @ S
    is taken β_j g_j / |k_j| times; what k_j is added to S g_3 / (g_j |k_j|) times; how often row j takes the
    new value of row i, for j, i = 1, 0; 2, 0; 2, 1; 3, 0; 3, 1; 3, 2, then g_3 and a 0; how often the outputs
    of each row take that of row i; what q_j @ S is taken g_j / |q_j| times.
    """
    begin()
    lane = thread() & 31
    group = block_x()
    four = block_y() * WARPS + shift_right(thread(), 5)
    if 4 * four < rows:
        q = registers((4, PARTS), 0.0)
        k = registers((4, PARTS), 0.0)
        for j in static(4):
            if 4 * four + j < rows:
                row = qkv + (4 * four + j) * qkv_stride + 4 * group * key_dim
                for s in static(PARTS):
                    q[j, s] = part_of(row, lane, s, key_dim)
                    k[j, s] = part_of(row + 4 * groups * key_dim, lane, s, key_dim)
        qq = registers(4, 0.0)
        qk = registers((4, 4), 0.0)
        kk = registers((4, 4), 0.0)
        for j in static(4):
            for s in static(PARTS):
                qq[j] = qq[j] + q[j, s] * q[j, s]
                for i in static(j + 1):
                    qk[j, i] = qk[j, i] + q[j, s] * k[i, s]
                    kk[j, i] = kk[j, i] + k[j, s] * k[i, s]
        for bit in static(5):  # side by side, where `warp_sum` would do one after the other
            for j in static(4):
                qq[j] = qq[j] + shuffle_xor(qq[j], 1 << bit)
                for i in static(j + 1):
                    qk[j, i] = qk[j, i] + shuffle_xor(qk[j, i], 1 << bit)
                    kk[j, i] = kk[j, i] + shuffle_xor(kk[j, i], 1 << bit)
        of_q = registers(4)
        of_k = registers(4)
        for j in static(4):
            of_q[j] = div_f32(inverse_root, sqrt(qq[j] + eps))
            of_k[j] = div_f32(1.0, sqrt(kk[j, j] + eps))
        each = div_u32(heads, groups)
        for n in range(lane, each, 32):
            if TILED:
                head = n * groups + group
            else:
                head = group * each + n
            rate = load_constant(a + 4 * head) * LOG2_E
            bias = load_constant(step_bias + 4 * head)
            share = registers(4, 0.0)
            slower = registers(4, 0.0)  # logarithms of the decays
            for j in static(4):
                line = 4 * four + j
                if line < rows:
                    share[j] = sigmoid(load_float(beta + line * beta_stride + 4 * head))
                    moved = load_float(step + line * step_stride + 4 * head)
                    slower[j] = rate * softplus(moved + bias)
            g = registers(4)
            passed = 0.0
            for j in static(4):
                passed = passed + slower[j]
                g[j] = exp2(passed)
            take = registers((4, 4), 0.0)
            for i in static(4):
                passed = 0.0
                take[i, i] = of_k[i]
                for j in static(i + 1, 4):
                    passed = passed + slower[j]
                    take[j, i] = exp2(passed) * of_k[i]
            from_k = registers((4, 4), 0.0)
            from_q = registers((4, 4), 0.0)
            for j in static(4):
                for i in static(j + 1):
                    from_k[j, i] = share[j] * (take[j, i] * kk[j, i]) * of_k[j]
                    from_q[j, i] = take[j, i] * qk[j, i] * of_q[j]
            to = pairs + 4 * SIZE * (four * heads + head)
            store_float4(to, share[0], share[1], share[2], share[3])
            for j in static(4):
                store_float(to + 16 + 4 * j, share[j] * g[j] * of_k[j])
            store_float4(to + 32, *take[3])
            store_float4(to + 48, from_k[1, 0], from_k[2, 0], from_k[2, 1], from_k[3, 0])
            store_float4(to + 64, from_k[3, 1], from_k[3, 2], g[3], 0.0)
            for j in static(4):
                store_float4(to + 80 + 16 * j, *from_q[j])
                store_float(to + 144 + 4 * j, g[j] * of_q[j])


def delta_prompt(
    qkv,
    qkv_stride,
    pairs,
    out,
    out_stride,
    groups,
    heads,
    head_dim,
    key_dim,
    state,
    state_bytes,
    sequences,
    positions,
    rows,
):
    """The gated delta rule, the state [head, key_dim, head_dim]. Grid: (head_dim / (8 · WARPS), heads).

    With S before four rows, the new value of row j is u_j = β_j v_j - (k_j @ S) - Σ u_i over i < j, the
    output q_j @ S + Σ u_i over i <= j, and S = g_3 · S + Σ k_i ⊗ u_i, all of it as often as `pairs` says.
    """
    begin()
    lane = thread() & 31
    mine = lane & 3
    part = 4 * (lane & 15)
    head = block_y()
    base = 8 * (block_x() * WARPS + shift_right(thread(), 5)) + 4 * shift_right(lane, 4)
    if TILED:
        group = head - div_u32(head, groups) * groups
    else:
        group = div_u32(head, div_u32(heads, groups))
    if base - 4 * shift_right(lane, 4) < head_dim:
        own = state + load_int(sequences) * state_bytes + 4 * head * key_dim * head_dim
        memory = registers((4, PARTS, 4), 0.0)
        if load_int(positions) > 0:
            for c in static(4):
                column = base + bits_xor(mine, c)
                if column < head_dim:
                    for s in static(PARTS):
                        if part + 64 * s < key_dim:
                            for i in static(4):
                                key = part + 64 * s + i
                                memory[c, s, i] = load_float(own + 4 * (key * head_dim + column))
        column = base + mine
        if column >= head_dim:
            column = head_dim - 1
        of_q = qkv + 4 * group * key_dim
        of_k = of_q + 4 * groups * key_dim
        of_v = qkv + 4 * (2 * groups * key_dim + head * head_dim + column)
        q = registers((4, PARTS, 4))
        k = registers((4, PARTS, 4))
        after = registers((4, PARTS, 4))  # the next k
        for j in static(4):
            line = j
            if line >= rows:
                line = rows - 1
            for s in static(PARTS):
                q[j, s] = piece(of_q + line * qkv_stride, part + 64 * s, key_dim)
                k[j, s] = piece(of_k + line * qkv_stride, part + 64 * s, key_dim)
        turn = shift_right(lane, 2) & 3  # whose output this lane writes
        for t in range(0, rows, 4):
            found = pairs + 4 * SIZE * (shift_right(t, 2) * heads + head)
            said = registers((5, 4))
            for n in static(5):
                said[n] = load_float4(found + 16 * n)
            v = registers(4)
            for j in static(4):
                line = t + j
                if line >= rows:
                    line = rows - 1
                v[j] = load_float(of_v + line * qkv_stride)
            mix = registers((1, 4))
            mix[0] = load_float4(found + 80 + 16 * turn)
            of_state = load_float(found + 144 + 4 * turn)
            seen_k = registers((4, 4), 0.0)
            seen_q = registers((4, 4), 0.0)
            for s in static(PARTS):
                for i in static(4):
                    for j in static(4):
                        for c in static(4):
                            seen_k[j, c] = seen_k[j, c] + k[j, s, i] * memory[c, s, i]
                            seen_q[j, c] = seen_q[j, c] + q[j, s, i] * memory[c, s, i]
            for j in static(4):
                line = t + 4 + j
                if line >= rows:
                    line = rows - 1
                for s in static(PARTS):
                    after[j, s] = piece(of_k + line * qkv_stride, part + 64 * s, key_dim)
                    q[j, s] = piece(of_q + line * qkv_stride, part + 64 * s, key_dim)
            warp_barrier()  # else the assembler moves some of these loads to where they are used
            u = registers((4, 4))
            for j in static(4):
                seen_k[j, 0] = seen_k[j, 0] + shuffle_xor(seen_k[j, 2], 2)
                seen_k[j, 1] = seen_k[j, 1] + shuffle_xor(seen_k[j, 3], 2)
            for bit in static(3):
                for j in static(4):
                    if bit == 0:
                        seen_k[j, 0] = seen_k[j, 0] + shuffle_xor(seen_k[j, 1], 1)
                    else:
                        seen_k[j, 0] = seen_k[j, 0] + shuffle_xor(seen_k[j, 0], 2 << bit)
            for j in static(4):
                seen_q[j, 0] = own_column(*seen_q[j])
            seen = own_row(seen_q[0, 0], seen_q[1, 0], seen_q[2, 0], seen_q[3, 0], lane)
            for j in static(4):
                u[j, 0] = said[0, j] * v[j] - said[1, j] * seen_k[j, 0]
            u[1, 0] = u[1, 0] - said[3, 0] * u[0, 0]
            u[2, 0] = u[2, 0] - said[3, 1] * u[0, 0] - said[3, 2] * u[1, 0]
            u[3, 0] = u[3, 0] - said[3, 3] * u[0, 0] - said[4, 0] * u[1, 0] - said[4, 1] * u[2, 0]
            seen = seen * of_state
            for j in static(4):
                seen = seen + mix[0, j] * u[j, 0]
            for j in static(4):
                u[j, 0] = u[j, 0] * said[2, j]
                u[j, 1] = shuffle_xor(u[j, 0], 1)
            for j in static(4):
                u[j, 2] = shuffle_xor(u[j, 0], 2)
                u[j, 3] = shuffle_xor(u[j, 1], 2)
            if t + turn < rows:
                if base + mine < head_dim:
                    store_float(out + (t + turn) * out_stride + 4 * (head * head_dim + column), seen)
            for c in static(4):
                for s in static(PARTS):
                    for i in static(4):
                        value = said[4, 2] * memory[c, s, i]
                        for j in static(4):
                            value = value + k[j, s, i] * u[j, c]
                        memory[c, s, i] = value
            for j in static(4):
                for s in static(PARTS):
                    for i in static(4):
                        k[j, s, i] = after[j, s, i]
        for c in static(4):
            column = base + bits_xor(mine, c)
            if column < head_dim:
                for s in static(PARTS):
                    if part + 64 * s < key_dim:
                        for i in static(4):
                            key = part + 64 * s + i
                            store_float(own + 4 * (key * head_dim + column), memory[c, s, i])
