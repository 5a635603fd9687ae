"""Sums of products of block-quantised weights with a few rows of activations in 8 bits, on tensor cores.

A warp takes `M` tiles of 16 rows of weights, a chunk of four blocks of 32 at a time: what a lane loads of a
tile (see packing.py) are the fragments of that chunk's products, once it is unpacked. Activations are as
`common.emit_codes` writes them. Both digits of these are multiplied by themselves, in whole numbers; then a
block's scales are applied. `KS` warps share the columns: a warp takes chunks `part`, `part` + KS, ….
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    bits_and,
    bits_or,
    load_float,
    load_float4,
    load_int2,
    load_int4,
    mma_s8,
    mma_s8_k16,
    shift_right,
    shuffle,
    thread,
)
from ..common.common import code_plane_bytes, join_digits, scale_plane_bytes

LOAD_CODES = UNPACK_CODES = LOAD_SCALES = UNPACK_SCALES = join_digits  # of the weights' format: see unpack.py
CODE_WORDS = SCALE_WORDS = TWO_SCALES = MINIMUM = M = KS = TOKENS = 0  # constants of the launch


@device
def load_first_chunk(tile: registers(M), blocks, part):
    """The first chunk of a warp's tiles, as it lies there: what sums begin with."""
    chunks = (blocks + 3) // 4
    piece = 64 * (part if part < chunks else chunks - 1) + (thread() & 31)
    codes = registers((M, 2, CODE_WORDS))
    scale = registers((M, 2, SCALE_WORDS))
    for m in static(M):
        for i in static(2):
            codes[m, i] = LOAD_CODES(tile[m], 64 * chunks, piece + 32 * i)
            scale[m, i] = LOAD_SCALES(tile[m], 64 * chunks, piece + 32 * i)
    return codes[()] + scale[()]


@device
def decode_mma_4(
    tile: registers(M),
    codes: registers((M, 2, CODE_WORDS)),
    scale: registers((M, 2, SCALE_WORDS)),
    x,
    blocks,
    part,
):
    """With 1, 2 or 4 rows of activations: `TOKENS`. Of a lane's sums [M, 2], number i is that of weights' row
    lane / 4 + 8i, and of activations' row lane % TOKENS, once the lanes with the same two are added up.

    The 8 columns of a product are the two digits of each row of activations, for as many blocks as there is
    room for: a block's columns have zeros for the other blocks, so that its sums stay its own.
    """
    lane = thread() & 31
    sub = lane & 3
    quad = shift_right(lane, 2)
    chunks = (blocks + 3) // 4
    pieces = 64 * chunks
    acc = registers((M, 2), 0.0)
    # As a column: whose digits; as the place of a result: whose block.
    column = x + sub * code_plane_bytes(blocks) + 16 * (shift_right(quad, 1) & (TOKENS - 1)) + 8 * (quad & 1)
    column_block = shift_right(quad, 1 + TOKENS // 2)
    own_block = shift_right(sub, TOKENS // 2)
    facts = x + 4 * code_plane_bytes(blocks) + 16 * (sub & (TOKENS - 1)) + 4 * own_block
    for chunk in range(part, chunks, KS):
        word = registers((4, 2))
        d = registers(TOKENS)
        s = registers(TOKENS)
        s2 = registers(TOKENS)
        for g in static(TOKENS):
            block = 4 * chunk + g * (4 // TOKENS) + column_block
            first, second = load_int2(column + 16 * TOKENS * block)
            for u in static(4 // TOKENS):
                word[g * (4 // TOKENS) + u, 0] = first if column_block == u else 0
                word[g * (4 // TOKENS) + u, 1] = second if column_block == u else 0
            at = facts + 16 * TOKENS * chunk + 16 // TOKENS * g
            d[g] = load_float(at)
            if MINIMUM and TWO_SCALES:
                s[g] = load_float(at + 2 * scale_plane_bytes(blocks))
                s2[g] = load_float(at + 3 * scale_plane_bytes(blocks))
            elif MINIMUM:
                s[g] = load_float(at + scale_plane_bytes(blocks))
        piece = 64 * chunk + lane
        for m in static(M):
            w = registers((2, 8))
            f = registers((2, 4))
            for i in static(2):
                w[i] = UNPACK_CODES(*codes[m, i])
                f[i] = UNPACK_SCALES(*scale[m, i], piece + 32 * i)
            if chunk + KS < chunks:
                for i in static(2):
                    codes[m, i] = LOAD_CODES(tile[m], pieces, piece + (64 * KS + 32 * i))
                    scale[m, i] = LOAD_SCALES(tile[m], pieces, piece + (64 * KS + 32 * i))
            for g in static(TOKENS):
                c = registers(4, 0)
                c2 = registers(4, 0)
                for u in static(g * (4 // TOKENS), (g + 1) * (4 // TOKENS)):
                    if TWO_SCALES:
                        c[()] = mma_s8_k16(w[0, 2 * u], w[1, 2 * u], word[u, 0], *c[()])
                        c2[()] = mma_s8_k16(w[0, 2 * u + 1], w[1, 2 * u + 1], word[u, 1], *c2[()])
                    else:
                        a = w[0, 2 * u], w[1, 2 * u], w[0, 2 * u + 1], w[1, 2 * u + 1]
                        c[()] = mma_s8(*a, *word[u], *c[()])
                source = bits_or(bits_and(lane, 28), g * (4 // TOKENS) + own_block)
                for i in static(2):
                    total = from_lane(f[i, 0], source) * join_digits(c[2 * i], c[2 * i + 1])
                    if TWO_SCALES:
                        second = join_digits(c2[2 * i], c2[2 * i + 1])
                        total = total + from_lane(f[i, 2], source) * second
                    acc[m, i] = acc[m, i] + d[g] * total
                    if MINIMUM:
                        acc[m, i] = acc[m, i] + from_lane(f[i, 1], source) * s[g]
                        if TWO_SCALES:
                            acc[m, i] = acc[m, i] + from_lane(f[i, 3], source) * s2[g]
    return acc[()]


@device
def from_lane(value, source):
    """What another lane has, which is this one where activations are a single row."""
    if TOKENS == 1:
        found = value
    else:
        found = shuffle(value, source)
    return found


@device
def decode_mma_8(
    tile: registers(M),
    codes: registers((M, 2, CODE_WORDS)),
    scale: registers((M, 2, SCALE_WORDS)),
    x,
    blocks,
    part,
):
    """With 8 or 16 rows of activations: `TOKENS`. Of a lane's sums [M, TOKENS / 8, 4], number [m, n, i] is
    that of weights' row lane / 4 + 8 (i / 2) and activations' row 8n + 2 (lane % 4) + i % 2.
    """
    lane = thread() & 31
    sub = lane & 3
    quad = shift_right(lane, 2)
    chunks = (blocks + 3) // 4
    pieces = 64 * chunks
    acc = registers((M, TOKENS // 8, 4), 0.0)
    column = x + sub * code_plane_bytes(blocks) + 16 * quad
    facts = x + 4 * code_plane_bytes(blocks) + 32 * sub
    for chunk in range(part, chunks, KS):
        word = registers((TOKENS // 8, 4, 4))
        d = registers((TOKENS // 8, 2, 4))
        s = registers((TOKENS // 8, 2, 4))
        s2 = registers((TOKENS // 8, 2, 4))
        for n in static(TOKENS // 8):
            for u in static(4):
                word[n, u] = load_int4(column + 16 * ((4 * chunk + u) * TOKENS + 8 * n))
            for j in static(2):
                at = facts + 16 * (chunk * TOKENS + 8 * n + j)
                d[n, j] = load_float4(at)
                if MINIMUM and TWO_SCALES:
                    s[n, j] = load_float4(at + 2 * scale_plane_bytes(blocks))
                    s2[n, j] = load_float4(at + 3 * scale_plane_bytes(blocks))
                elif MINIMUM:
                    s[n, j] = load_float4(at + scale_plane_bytes(blocks))
        piece = 64 * chunk + lane
        for m in static(M):
            w = registers((2, 8))
            a = registers(2)
            b = registers(2)
            a2 = registers(2)
            b2 = registers(2)
            for i in static(2):
                w[i] = UNPACK_CODES(*codes[m, i])
                a[i], b[i], a2[i], b2[i] = UNPACK_SCALES(*scale[m, i], piece + 32 * i)
            if chunk + KS < chunks:
                for i in static(2):
                    codes[m, i] = LOAD_CODES(tile[m], pieces, piece + (64 * KS + 32 * i))
                    scale[m, i] = LOAD_SCALES(tile[m], pieces, piece + (64 * KS + 32 * i))
            for u in static(4):
                source = bits_or(bits_and(lane, 28), u)  # the lane that has this block's scales
                wa = registers(2)
                wb = registers(2)
                wa2 = registers(2)
                wb2 = registers(2)
                for i in static(2):
                    wa[i] = shuffle(a[i], source)
                    if MINIMUM:
                        wb[i] = shuffle(b[i], source)
                    if TWO_SCALES:
                        wa2[i] = shuffle(a2[i], source)
                        if MINIMUM:
                            wb2[i] = shuffle(b2[i], source)
                for n in static(TOKENS // 8):
                    first = registers(4)
                    second = registers(4)
                    if TWO_SCALES:
                        later = registers(4)
                        last = registers(4)
                        first[()] = mma_s8_k16(w[0, 2 * u], w[1, 2 * u], word[n, u, 0], 0, 0, 0, 0)
                        second[()] = mma_s8_k16(w[0, 2 * u], w[1, 2 * u], word[n, u, 2], 0, 0, 0, 0)
                        later[()] = mma_s8_k16(w[0, 2 * u + 1], w[1, 2 * u + 1], word[n, u, 1], 0, 0, 0, 0)
                        last[()] = mma_s8_k16(w[0, 2 * u + 1], w[1, 2 * u + 1], word[n, u, 3], 0, 0, 0, 0)
                    else:
                        f = w[0, 2 * u], w[1, 2 * u], w[0, 2 * u + 1], w[1, 2 * u + 1]
                        first[()] = mma_s8(*f, word[n, u, 0], word[n, u, 1], 0, 0, 0, 0)
                        second[()] = mma_s8(*f, word[n, u, 2], word[n, u, 3], 0, 0, 0, 0)
                    for i in static(4):
                        if TWO_SCALES:
                            total = wa[i // 2] * join_digits(first[i], second[i])
                            total = total + wa2[i // 2] * join_digits(later[i], last[i])
                            acc[m, n, i] = acc[m, n, i] + d[n, i % 2, u] * total
                        else:
                            total = join_digits(first[i], second[i])
                            acc[m, n, i] = acc[m, n, i] + (wa[i // 2] * d[n, i % 2, u]) * total
                        if MINIMUM:
                            acc[m, n, i] = acc[m, n, i] + wb[i // 2] * s[n, i % 2, u]
                            if TWO_SCALES:
                                acc[m, n, i] = acc[m, n, i] + wb2[i // 2] * s2[n, i % 2, u]
    return acc[()]
