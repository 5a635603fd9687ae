"""What happens to queries and keys before attention: norms, rotation, and where the cache takes them.

Rotations are made once a step, for all layers that turn alike: [rows, 2 · pairs] of cosines, then sines.
"""

from __future__ import annotations

from ...compile.stage import device
from ...ptx import (
    block_x,
    block_y,
    cosine,
    div_u32,
    load_constant,
    load_float,
    load_int,
    load_shared,
    log2,
    rsqrt,
    shared,
    shift_right,
    sine,
    store_float,
    store_shared,
    thread,
    to_float,
    warp_barrier,
)
from ..common.common import begin, warp_sum
from .cache import page_of, piece_of, store_cached

# Constants of the launch. HD: dimensions of a head, DP padded. WARPS: of a block. NORM: 0 none, 1 with
# weights for all heads, 2 with each head's own.
HD = DP = PAGE = WARPS = Q_NORM = K_NORM = ROPE = INTERLEAVED = LATENT = 0


def rotations(positions, frequencies, frequency_stride, pairs, factor: float, out, out_stride):
    """Grid: (pairs / 128, rows), of 128 threads."""
    begin()
    i = block_x() * 128 + thread()
    if i < pairs:
        position = to_float(load_int(positions + 4 * block_y()))
        angle = position * load_float(frequencies + block_y() * frequency_stride + 4 * i)
        to = out + block_y() * out_stride + 4 * i
        store_float(to, cosine(angle) * factor)
        store_float(to + 4 * pairs, sine(angle) * factor)


@device
def turned(x, dim, start, pairs, angles):
    """Dimension `dim` of a head of shared memory at x, rotated."""
    value = load_shared(x + 4 * dim)
    i = dim - start
    if i >= 0 and i < 2 * pairs:
        if INTERLEAVED:
            pair = i >> 1
            other = load_shared(x + 4 * (start + (i ^ 1)))
            second = i & 1
        else:
            second = 0
            if i >= pairs:
                second = 1
            pair = i - second * pairs
            other = load_shared(x + 4 * (start + i + pairs - 2 * second * pairs))
        cos, sin = load_float(angles + 4 * pair), load_float(angles + 4 * (pairs + pair))
        if second == 1:
            value = value * cos + other * sin
        else:
            value = value * cos - other * sin
    return value


def rope(x, x_stride, heads, start, pairs, angles, angle_stride):
    """Rotate heads in place. Grid: (heads / WARPS, rows): a warp takes a head."""
    begin()
    warp, lane = shift_right(thread(), 5), thread() & 31
    head = block_x() * WARPS + warp
    if head < heads:
        at = x + block_y() * x_stride + 4 * head * HD
        held = shared() + 4 * warp * HD
        for dim in range(lane, HD, 32):
            store_shared(held + 4 * dim, load_float(at + 4 * dim))
        warp_barrier()
        for dim in range(lane, HD, 32):
            store_float(at + 4 * dim, turned(held, dim, start, pairs, angles + block_y() * angle_stride))


@device
def scale_head(held, weight, factor):
    for dim in range(thread() & 31, HD, 32):
        store_shared(held + 4 * dim, load_shared(held + 4 * dim) * factor * load_constant(weight + 4 * dim))


@device
def bring_head(source, held, kind, q_norm, k_norm, eps):
    """A head of HD numbers into shared memory by a warp, normed if queries (kind 0) or keys (1) are."""
    squares = 0.0
    for dim in range(thread() & 31, HD, 32):
        value = load_float(source + 4 * dim)
        store_shared(held + 4 * dim, value)
        squares = squares + value * value
    warp_barrier()
    if Q_NORM or K_NORM:
        factor = rsqrt(warp_sum(squares) * INVERSE_HD + eps)
        if kind == 0 and Q_NORM:
            scale_head(held, q_norm, factor)
        if kind == 1 and K_NORM:
            scale_head(held, k_norm, factor)
        warp_barrier()


@device
def prepared(held, dim, kind, pairs, angles):
    """Dimension `dim` of what `bring_head` brought; values (kind 2) are not rotated."""
    value = load_shared(held + 4 * dim)
    if ROPE:
        if kind < 2:
            value = turned(held, dim, 0, pairs, angles)
    return value


def prepare(
    q,
    q_stride,
    k,
    k_stride,
    v,
    v_stride,
    q_norm,
    k_norm,
    eps: float,
    pairs,
    angles,
    angle_stride,
    keys,
    values,
    table,
    table_stride,
    sequences,
    positions,
    heads,
    kv_heads,
):
    """Norm and rotate queries in place, and keys on their way into the cache; append values.

    Grid: ((heads + 2 · kv_heads) / WARPS, rows): a warp takes a head. With `heads` 0 only the cache is
    filled; with `LATENT` there are no values.
    """
    begin()
    warp, lane = shift_right(thread(), 5), thread() & 31
    head = block_x() * WARPS + warp
    row = block_y()
    held = shared() + 4 * warp * DP
    if head < heads + (2 - LATENT) * kv_heads:
        kind = 0
        source = q + row * q_stride
        if head >= heads:
            kind = 1
            head = head - heads
            source = k + row * k_stride
            if not LATENT and head >= kv_heads:
                kind = 2
                head = head - kv_heads
                source = v + row * v_stride
        source = source + 4 * head * HD
        weights = q_norm + 4 * HD * head * (Q_NORM - 1), k_norm + 4 * HD * head * (K_NORM - 1)
        bring_head(source, held, kind, *weights, eps)
        piece = keys
        if kind == 2:
            piece = values
        position = load_int(positions + 4 * row)
        slot = position & ((1 << PAGE) - 1)
        if kind > 0:
            page = page_of(table + load_int(sequences + 4 * row) * table_stride, position)
            piece = piece_of(piece, page, head, kv_heads)
        for dim in range(lane, DP, 32):
            value = 0.0
            if dim < HD:
                value = prepared(held, dim, kind, pairs, angles + row * angle_stride)
            if kind == 0:
                if dim < HD:
                    store_float(source + 4 * dim, value)
            else:
                store_cached(piece, slot, dim, value)


def grow_queries(x, x_stride, width, positions, beta: float, length):
    """x · (1 + beta · ln(1 + position // length)). Grid: (width / 256, rows)."""
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        passed = to_float(div_u32(load_int(positions + 4 * block_y()), length))
        at = x + block_y() * x_stride + 4 * i
        store_float(at, load_float(at) * (1.0 + beta * 0.6931471805599453 * log2(1.0 + passed)))


INVERSE_HD = 0.0  # 1 / HD, another constant
