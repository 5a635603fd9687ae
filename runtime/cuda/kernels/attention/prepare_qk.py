"""What happens to queries and keys before attention: RMSNorm of heads, RoPE, and writing keys and values to
the cache.

Su et al. 2021, "RoFormer" (RoPE).
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
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
from .cache import PagedCache, block_table_of, head_in_page, page_of, store_cached

HD = DP = PAGE = WARPS = Q_NORM = K_NORM = ROPE = INTERLEAVED = LATENT = 0  # constants: see `prepare_qk`
INVERSE_HD = 0.0


class QKPreparation(KernelArguments):
    """Norms and RoPE of a layer's queries and keys."""

    q_norm: int  # float32 [HD], or [heads, HD]: see Q_NORM
    k_norm: int  # float32 [HD], or [kv_heads, HD]: see K_NORM
    eps: float
    pairs: int  # pairs of dimensions that RoPE turns, at the start of a head
    angles: int  # float32 [rows, 2 · pairs]: see `rope_angles`, or 0, and
    frequencies: int = 0  # float32 [pairs] of a step with one row, and `factor`, of which they are made
    factor: float = 1.0


class PrepareArguments(KernelArguments):
    """What `prepare_qk` takes."""

    q: Region  # float32 [rows, heads · HD], changed in place
    k: Region  # float32 [rows, kv_heads · HD]
    v: Region  # float32 [rows, kv_heads · HD]
    preparation: QKPreparation
    angle_stride: int  # bytes from row to row of the angles
    cache: PagedCache
    heads: int
    kv_heads: int


def rope_angles(positions, frequencies, frequency_stride, pairs, factor: float, out, out_stride):
    """Cosines and sines of RoPE, float32 [rows, 2 · pairs], first all cosines: once a step for all layers
    with the same frequencies.

    Grid: (pairs / 128, rows), of 128 threads: a thread computes one angle. `positions` is int32 [rows],
    `frequencies` float32 [rows, pairs], or [pairs] if the stride is 0; `factor` multiplies both results.
    """
    begin()
    i = block_x() * 128 + thread()
    if i < pairs:
        position = to_float(load_int(positions + 4 * block_y()))
        angle = position * load_float(frequencies + block_y() * frequency_stride + 4 * i)
        to = out + block_y() * out_stride + 4 * i
        store_float(to, cosine(angle) * factor)
        store_float(to + 4 * pairs, sine(angle) * factor)


@device
def rotated(x, dim, start, pairs, angles):
    """Dimension `dim` of a head in shared memory at x after RoPE of the dimensions from `start` on.

    With INTERLEAVED a pair is two neighbours, otherwise dimensions i and i + pairs.
    """
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
    """RoPE of heads in place, x float32 [rows, heads · HD].

    Grid: (heads / WARPS, rows), of 32 · WARPS threads: a warp takes a head. Shared memory: HD float32 a warp.
    """
    begin()
    warp, lane = shift_right(thread(), 5), thread() & 31
    head = block_x() * WARPS + warp
    if head < heads:
        at = x + block_y() * x_stride + 4 * head * HD
        copy = shared() + 4 * warp * HD
        for dim in range(lane, HD, 32):
            store_shared(copy + 4 * dim, load_float(at + 4 * dim))
        warp_barrier()
        for dim in range(lane, HD, 32):
            store_float(at + 4 * dim, rotated(copy, dim, start, pairs, angles + block_y() * angle_stride))


@device
def scale_head(head, weight, factor):
    """Multiply HD numbers in shared memory by `factor` and by weights, by a warp."""
    for dim in range(thread() & 31, HD, 32):
        store_shared(head + 4 * dim, load_shared(head + 4 * dim) * factor * load_constant(weight + 4 * dim))


@device
def load_normed_head(source, head, kind, q_norm, k_norm, eps):
    """Load HD numbers into shared memory at `head`, by a warp, and apply RMSNorm if there is one.

    `kind`: 0 a query, 1 a key, 2 a value, which has no norm.
    """
    squares = 0.0
    for dim in range(thread() & 31, HD, 32):
        value = load_float(source + 4 * dim)
        store_shared(head + 4 * dim, value)
        squares = squares + value * value
    warp_barrier()
    if Q_NORM or K_NORM:
        factor = rsqrt(warp_sum(squares) * INVERSE_HD + eps)
        if kind == 0 and Q_NORM:
            scale_head(head, q_norm, factor)
        if kind == 1 and K_NORM:
            scale_head(head, k_norm, factor)
        warp_barrier()


@device
def rotated_dim(head, dim, kind, pairs, angles):
    """Dimension `dim` of what `load_normed_head` loaded, after RoPE; values (kind 2) are not rotated."""
    value = load_shared(head + 4 * dim)
    if ROPE:
        if kind < 2:
            value = rotated(head, dim, 0, pairs, angles)
    return value


def prepare_qk(args: PrepareArguments) -> None:
    """Norm and rotate queries in place; write keys, normed and rotated, and values to the cache.

    Grid: ((heads + 2 · kv_heads) / WARPS, rows), of 32 · WARPS threads: a warp takes a head of one row. With
    heads = 0 only the cache is written. Shared memory: DP float32 a warp.

    Constants besides those of `cache.py`:
        HD              dimensions of a head; INVERSE_HD is 1 / HD
        WARPS           of a block
        Q_NORM, K_NORM  RMSNorm: 0 none, 1 one weight for all heads, 2 each head has weights of its own
        ROPE            1: queries and keys are rotated; INTERLEAVED: see `rotated`
        LATENT          1: there are no values, they are part of the keys
    """
    begin()
    warp, lane = shift_right(thread(), 5), thread() & 31
    head = block_x() * WARPS + warp
    row = block_y()
    copy = shared() + 4 * warp * DP
    if head < args.heads + (2 - LATENT) * args.kv_heads:
        kind = 0
        source = args.q.address + row * args.q.stride
        if head >= args.heads:
            kind = 1
            head = head - args.heads
            source = args.k.address + row * args.k.stride
            if not LATENT and head >= args.kv_heads:
                kind = 2
                head = head - args.kv_heads
                source = args.v.address + row * args.v.stride
        source = source + 4 * head * HD
        q_norm = args.preparation.q_norm + 4 * HD * head * (Q_NORM - 1)
        k_norm = args.preparation.k_norm + 4 * HD * head * (K_NORM - 1)
        load_normed_head(source, copy, kind, q_norm, k_norm, args.preparation.eps)
        part = args.cache.keys
        if kind == 2:
            part = args.cache.values
        position = load_int(args.cache.positions + 4 * row)
        slot = position & ((1 << PAGE) - 1)
        if kind > 0:
            page = page_of(block_table_of(args.cache, row), position)
            part = head_in_page(part, page, head, args.kv_heads)
        angles = args.preparation.angles + row * args.angle_stride
        for dim in range(lane, DP, 32):
            value = 0.0
            if dim < HD:
                value = rotated_dim(copy, dim, kind, args.preparation.pairs, angles)
            if kind == 0:
                if dim < HD:
                    store_float(source + 4 * dim, value)
            else:
                store_cached(part, slot, dim, value)


def grow_queries(x, x_stride, width, positions, beta: float, length):
    """x · (1 + beta · ln(1 + position // length)) in place, x float32 [rows, width], positions int32 [rows].

    Grid: (width / 256, rows), of 256 threads: a thread takes one number. See `ops.ScaleQueries`.
    """
    begin()
    i = block_x() * 256 + thread()
    if i < width:
        lengths = to_float(div_u32(load_int(positions + 4 * block_y()), length))
        at = x + block_y() * x_stride + 4 * i
        store_float(at, load_float(at) * (1.0 + beta * 0.6931471805599453 * log2(1.0 + lengths)))
