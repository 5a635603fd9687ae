"""Ops that go on where a sequence stopped; see `runtime/ops/recurrent.py`.

A step's rows are walked through in order. Each thread keeps its part of the state in registers, and leaves it
for another sequence's when a row is that one's; at position 0 it begins with zeros. States are `state_bytes`
from sequence to sequence.
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    absolute,
    block_x,
    block_y,
    div_f32,
    div_u32,
    exp2,
    load_constant,
    load_float,
    load_int,
    log2,
    maximum,
    shift_right,
    sqrt,
    store_float,
    thread,
)
from ..common.common import begin, sigmoid, warp_sum

# Constants of the launch. A warp takes R rows, or columns, of a head's state, whose other side has PARTS · 32
# numbers at most.
TAPS = BIAS = SILU = WARPS = R = PARTS = TILED = 0
LOG2_E = 1.4426950408889634
AHEAD = 8  # rows that are loaded at once


@device
def softplus(x):
    """ln(1 + e^x)."""
    e = exp2(absolute(x) * -1.4426950408889634)
    y = log2(1.0 + e) * 0.6931471805599453
    if e < 0.03125:  # 1 + e has lost what the logarithm is made of
        y = e * (1.0 - e * (0.5 - e * (0.3333333333333333 - e * 0.25)))
    return maximum(x, 0.0) + y


def causal_conv(
    x, x_stride, out, out_stride, weight, bias, state, state_bytes, sequences, positions, rows, channels
):
    """Grid: (channels / 128,), of 128 threads: a thread takes a channel. `out` may be x."""
    begin()
    c = block_x() * 128 + thread()
    if c < channels:
        w = registers(TAPS)
        for j in static(TAPS):
            w[j] = load_constant(weight + 4 * (c * TAPS + j))
        first = 0.0
        if BIAS:
            first = load_constant(bias + 4 * c)
        held = registers(TAPS, 0.0)  # the rows before, the oldest first, and the present one
        current = -1
        for start in range(0, rows, AHEAD):
            ahead = registers(AHEAD)
            for u in static(AHEAD):
                line = start + u
                if line >= rows:
                    line = rows - 1
                ahead[u] = load_float(x + line * x_stride + 4 * c)
            for u in static(AHEAD):
                line = start + u
                if line < rows:
                    sequence = load_int(sequences + 4 * line)
                    if sequence != current:
                        if current >= 0:
                            for j in static(TAPS - 1):
                                store_float(state + current * state_bytes + 4 * (j * channels + c), held[j])
                        current = sequence
                        for j in static(TAPS - 1):
                            held[j] = 0.0
                        if load_int(positions + 4 * line) > 0:
                            for j in static(TAPS - 1):
                                held[j] = load_float(state + current * state_bytes + 4 * (j * channels + c))
                    held[TAPS - 1] = ahead[u]
                    total = first
                    for j in static(TAPS):
                        total = total + w[j] * held[j]
                    for j in static(TAPS - 1):
                        held[j] = held[j + 1]
                    if SILU:
                        total = total * sigmoid(total)
                    store_float(out + line * out_stride + 4 * c, total)
        if current >= 0:
            for j in static(TAPS - 1):
                store_float(state + current * state_bytes + 4 * (j * channels + c), held[j])


@device
def part_of(row, lane, part, size):
    """Number lane + 32 · part of a vector of that size; 0 behind its end."""
    value = 0.0
    if lane + 32 * part < size:
        value = load_float(row + 4 * (lane + 32 * part))
    return value


def state_scan(
    xbc,
    xbc_stride,
    step,
    step_stride,
    out,
    out_stride,
    a,
    skip,
    step_bias,
    step_scale: float,
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
    """Mamba-2's recurrence, the state [head, head_dim, size]. Grid: (head_dim / (WARPS · R), heads)."""
    begin()
    lane = thread() & 31
    head = block_y()
    first = (block_x() * WARPS + shift_right(thread(), 5)) * R
    group = div_u32(head, div_u32(heads, groups))
    if first < head_dim:
        rate = load_constant(a + 4 * head) * LOG2_E
        keep = load_constant(skip + 4 * head)
        bias = load_constant(step_bias + 4 * head)
        memory = registers((R, PARTS), 0.0)
        place = registers(R)
        for r in static(R):
            place[r] = first + r
            if first + r >= head_dim:
                place[r] = head_dim - 1
        current = -1
        held = state
        for t in range(rows):
            row = xbc + t * xbc_stride
            moved = load_float(step + t * step_stride + 4 * head)
            b = registers(PARTS)
            c = registers(PARTS)
            x = registers(R)
            for s in static(PARTS):
                b[s] = part_of(row + 4 * (heads * head_dim + group * size), lane, s, size)
                c[s] = part_of(row + 4 * (heads * head_dim + (groups + group) * size), lane, s, size)
            for r in static(R):
                x[r] = load_float(row + 4 * (head * head_dim + place[r]))
            sequence = load_int(sequences + 4 * t)
            if sequence != current:
                if current >= 0:
                    for r in static(R):
                        for s in static(PARTS):
                            if lane + 32 * s < size:
                                store_float(held + 4 * (place[r] * size + lane + 32 * s), memory[r, s])
                current = sequence
                held = state + current * state_bytes + 4 * head * head_dim * size
                for r in static(R):
                    for s in static(PARTS):
                        memory[r, s] = 0.0
                        if load_int(positions + 4 * t) > 0:
                            memory[r, s] = part_of(held + 4 * place[r] * size, lane, s, size)
            time = softplus(moved * step_scale + bias)
            decay = exp2(rate * time)
            for r in static(R):
                total = 0.0
                for s in static(PARTS):
                    memory[r, s] = decay * memory[r, s] + time * x[r] * b[s]
                    total = total + memory[r, s] * c[s]
                total = warp_sum(total)
                if lane == 0:
                    store_float(out + t * out_stride + 4 * (head * head_dim + place[r]), total + keep * x[r])
        for r in static(R):
            for s in static(PARTS):
                if lane + 32 * s < size:
                    store_float(held + 4 * (place[r] * size + lane + 32 * s), memory[r, s])


def delta_rule(
    qkv,
    qkv_stride,
    beta,
    beta_stride,
    step,
    step_stride,
    out,
    out_stride,
    a,
    step_bias,
    eps: float,
    groups,
    heads,
    head_dim,
    key_dim,
    inverse_root: float,
    state,
    state_bytes,
    sequences,
    positions,
    rows,
):
    """The gated delta rule, the state [head, key_dim, head_dim]. Grid: (head_dim / (WARPS · R), heads).

    `inverse_root` is 1 / sqrt(key_dim).
    """
    begin()
    lane = thread() & 31
    head = block_y()
    first = (block_x() * WARPS + shift_right(thread(), 5)) * R
    if TILED:
        group = head - div_u32(head, groups) * groups
    else:
        group = div_u32(head, div_u32(heads, groups))
    if first < head_dim:
        rate = load_constant(a + 4 * head) * LOG2_E
        bias = load_constant(step_bias + 4 * head)
        memory = registers((R, PARTS), 0.0)
        place = registers(R)
        for r in static(R):
            place[r] = first + r
            if first + r >= head_dim:
                place[r] = head_dim - 1
        current = -1
        held = state
        for t in range(rows):
            row = qkv + t * qkv_stride
            moved = load_float(step + t * step_stride + 4 * head)
            share = load_float(beta + t * beta_stride + 4 * head)
            q = registers(PARTS)
            k = registers(PARTS)
            v = registers(R)
            for s in static(PARTS):
                q[s] = part_of(row + 4 * group * key_dim, lane, s, key_dim)
                k[s] = part_of(row + 4 * (groups + group) * key_dim, lane, s, key_dim)
            for r in static(R):
                v[r] = load_float(row + 4 * (2 * groups * key_dim + head * head_dim + place[r]))
            sequence = load_int(sequences + 4 * t)
            if sequence != current:
                if current >= 0:
                    for r in static(R):
                        for s in static(PARTS):
                            if lane + 32 * s < key_dim:
                                store_float(held + 4 * ((lane + 32 * s) * head_dim + place[r]), memory[r, s])
                current = sequence
                held = state + current * state_bytes + 4 * head * key_dim * head_dim
                for r in static(R):
                    for s in static(PARTS):
                        memory[r, s] = 0.0
                        if load_int(positions + 4 * t) > 0:
                            if lane + 32 * s < key_dim:
                                memory[r, s] = load_float(held + 4 * ((lane + 32 * s) * head_dim + place[r]))
            of_q = 0.0
            of_k = 0.0
            for s in static(PARTS):
                of_q = of_q + q[s] * q[s]
                of_k = of_k + k[s] * k[s]
            of_q = div_f32(inverse_root, sqrt(warp_sum(of_q) + eps))
            of_k = div_f32(1.0, sqrt(warp_sum(of_k) + eps))
            for s in static(PARTS):
                q[s] = q[s] * of_q
                k[s] = k[s] * of_k
            decay = exp2(rate * softplus(moved + bias))
            share = sigmoid(share)
            for r in static(R):
                total = 0.0
                for s in static(PARTS):
                    memory[r, s] = decay * memory[r, s]
                    total = total + k[s] * memory[r, s]
                new = share * (v[r] - warp_sum(total))
                total = 0.0
                for s in static(PARTS):
                    memory[r, s] = memory[r, s] + k[s] * new
                    total = total + q[s] * memory[r, s]
                total = warp_sum(total)
                if lane == 0:
                    store_float(out + t * out_stride + 4 * (head * head_dim + place[r]), total)
        for r in static(R):
            for s in static(PARTS):
                if lane + 32 * s < key_dim:
                    store_float(held + 4 * ((lane + 32 * s) * head_dim + place[r]), memory[r, s])
