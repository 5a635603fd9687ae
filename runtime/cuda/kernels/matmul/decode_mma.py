"""Sums of products of block-quantised weights with up to 16 rows of quantised activations, with `mma.sync`.

A warp takes M tiles of 16 matrix rows and every KS-th chunk of four blocks, from chunk `part` on. What a lane
loads of a tile (see weights/packing.py) are the A fragments of a chunk after unpacking; activations are B
fragments in the layout of `store_quantized`. Products are exact, in int8 and int32, separately for the high
and the low bytes of the 16-bit codes of the activations; then each block's scales are applied in float32. The
weights of the next chunk are loaded while the current one is multiplied.
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    as_float,
    as_int,
    bits_and,
    bits_or,
    div_u32,
    load_float,
    load_float4,
    load_int2,
    load_int4,
    mma_s8,
    mma_s8_k16,
    multiply_add,
    shift_right,
    shuffle,
    thread,
)
from ..common.common import code_plane_bytes, join_bytes, scale_plane_bytes

# Of the weights' format: see unpack.py.
LOAD_CODES = UNPACK_CODES = UNPACK_SUMMANDS = LOAD_BLOCK_SCALES = UNPACK_BLOCK_SCALES = LOAD_FACTOR = (
    join_bytes
)
CODE_WORDS = BLOCK_SCALE_WORDS = TWO_SCALES = MINIMUM = SUMMANDS = FACTOR = 0
PEELED = M = KS = TOKENS = 0  # constants of the launch


@device
def load_first_chunk(tile: registers(M), blocks, part):
    """Load a warp's first chunk, still packed: the codes, [M, 2, CODE_WORDS], then the scales of its
    tiles.
    """
    chunks = (blocks + 3) // 4
    piece = 64 * (part if part < chunks else chunks - 1) + (thread() & 31)
    codes = registers((M, 2, CODE_WORDS))
    scale = registers((M, 2, BLOCK_SCALE_WORDS))
    for m in static(M):
        for i in static(2):
            codes[m, i] = LOAD_CODES(tile[m], 64 * chunks, piece + 32 * i)
            scale[m, i] = LOAD_BLOCK_SCALES(tile[m], 64 * chunks, piece + 32 * i)
    return codes[()] + scale[()]


@device
def load_row_factors(tile: registers(M), blocks):
    """The factors of the lane's two rows of each tile, [M, 2]."""
    own = registers((M, 2))
    row = shift_right(thread() & 31, 2)
    for m in static(M):
        for i in static(2):
            own[m, i] = LOAD_FACTOR(tile[m], 64 * ((blocks + 3) // 4), row + 8 * i)
    return own[()]


@device
def load_factors(at, plane):
    """The factors d, s and s' of activations, those that the format needs. `plane` is the bytes of a plane of
    scales.
    """
    d = load_float(at)
    s = 0.0
    s2 = 0.0
    if MINIMUM and TWO_SCALES:
        s = load_float(at + 2 * plane)
        s2 = load_float(at + 3 * plane)
    elif MINIMUM:
        s = load_float(at + plane)
    return d, s, s2


@device
def add_products(
    acc: registers(2),
    w: registers((2, 8 * (1 + SUMMANDS))),
    f: registers((2, 4)),
    b: registers((4, 2)),
    factor: registers((TOKENS, 3)),
    own_block,
):
    """The sums `acc` of two rows of a tile, and the products of a chunk.

    w are the unpacked codes, with SUMMANDS behind each word another that is to be added to it, and f the scales of the lane's two pieces, b the words of B for each block, and
    `factor` those of the activations.
    """
    for g in static(TOKENS):
        c = registers(4, 0)
        c2 = registers(4, 0)
        for u in static(g * (4 // TOKENS), (g + 1) * (4 // TOKENS)):
            if SUMMANDS and TWO_SCALES:
                a = w[0, 4 * u], w[1, 4 * u], w[0, 4 * u + 1], w[1, 4 * u + 1]
                c[()] = mma_s8(*a, b[u, 0], b[u, 0], *c[()])
                a = w[0, 4 * u + 2], w[1, 4 * u + 2], w[0, 4 * u + 3], w[1, 4 * u + 3]
                c2[()] = mma_s8(*a, b[u, 1], b[u, 1], *c2[()])
            elif SUMMANDS:
                for k in static(2):
                    a = w[0, 4 * u + k], w[1, 4 * u + k], w[0, 4 * u + 2 + k], w[1, 4 * u + 2 + k]
                    c[()] = mma_s8(*a, *b[u], *c[()])
            elif TWO_SCALES:
                c[()] = mma_s8_k16(w[0, 2 * u], w[1, 2 * u], b[u, 0], *c[()])
                c2[()] = mma_s8_k16(w[0, 2 * u + 1], w[1, 2 * u + 1], b[u, 1], *c2[()])
            else:
                c[()] = mma_s8(w[0, 2 * u], w[1, 2 * u], w[0, 2 * u + 1], w[1, 2 * u + 1], *b[u], *c[()])
        source = bits_or(bits_and(thread(), 28), g * (4 // TOKENS) + own_block)
        for i in static(2):
            total = from_lane(f[i, 0], source) * join_bytes(c[2 * i], c[2 * i + 1])
            if TWO_SCALES:
                total = total + from_lane(f[i, 2], source) * join_bytes(c2[2 * i], c2[2 * i + 1])
            acc[i] = acc[i] + factor[g, 0] * total
            if MINIMUM:
                acc[i] = acc[i] + from_lane(f[i, 1], source) * factor[g, 1]
                if TWO_SCALES:
                    acc[i] = acc[i] + from_lane(f[i, 3], source) * factor[g, 2]
    return acc[()]


@device
def decode_mma_4(
    tile: registers(M),
    codes: registers((M, 2, CODE_WORDS)),
    scale: registers((M, 2, BLOCK_SCALE_WORDS)),
    x,
    blocks,
    part,
):
    """Sums for TOKENS = 1, 2 or 4 rows of activations: [M, 2] registers.

    Element [m, i] belongs to matrix row lane / 4 + 8i of tile m and activation row lane % TOKENS; the caller
    adds up the lanes that share both. The 8 columns of B are the high and low bytes of TOKENS rows for 4 /
    TOKENS blocks at once: the columns of one block are zero in the k-range of the other blocks, so that each
    block gets a sum of its own. `tile` are the addresses of the tiles, `codes` and `scale` what
    `load_first_chunk` returned, `x` the quantised activations.
    """
    lane = thread() & 31
    sub = lane & 3
    quad = shift_right(lane, 2)
    chunks = (blocks + 3) // 4
    pieces = 64 * chunks
    plane = scale_plane_bytes(blocks)
    acc = registers((M, 2), 0.0)
    # The row and byte that this lane loads as a column of B; the block whose result it holds.
    column = x + sub * code_plane_bytes(blocks) + 16 * (shift_right(quad, 1) & (TOKENS - 1)) + 8 * (quad & 1)
    column_block = shift_right(quad, 1 + TOKENS // 2)
    column = column + 16 * TOKENS * column_block
    own_block = shift_right(sub, TOKENS // 2)
    scales = x + 4 * code_plane_bytes(blocks) + 16 * (sub & (TOKENS - 1)) + 4 * own_block
    mask = registers(4 // TOKENS)
    for u in static(4 // TOKENS):
        if SUMMANDS:
            mask[u] = as_int(shuffle(as_float(1 if column_block == u else 0), lane))
        else:
            mask[u] = -1 if column_block == u else 0
    row_factor = registers((M, 2))
    if FACTOR:
        row_factor[()] = load_row_factors(*tile[()], blocks)
    if SUMMANDS:  # a 0 that the assembler does not know, and that it cannot take for the same in all lanes
        zero = shift_right(column >> 32, 31)
    # With PEELED the warp's last chunk, during which nothing is loaded, is in a second copy of the loop, so
    # that there is no branch in either and the assembler can mix the instructions of all tiles.
    final = chunks
    if PEELED and part < chunks:
        final = part + div_u32(chunks - 1 - part, KS) * KS
    for last in static(1 + PEELED):
        for chunk in range(final if last else part, chunks if last else final, KS):
            b_word = registers((4, 2))
            factor = registers((TOKENS, 3))
            for g in static(TOKENS):
                words = registers(2)
                words[()] = load_int2(column + (64 * TOKENS * chunk + 64 * g))
                for u in static(4 // TOKENS):
                    for h in static(2):
                        if SUMMANDS:  # the units that do the logic have enough to do
                            b_word[g * (4 // TOKENS) + u, h] = multiply_add(words[h], mask[u], 0)
                        else:
                            b_word[g * (4 // TOKENS) + u, h] = bits_and(words[h], mask[u])
                factor[g] = load_factors(scales + (16 * TOKENS * chunk + 16 // TOKENS * g), plane)
            piece = 64 * chunk + lane
            w = registers((M, 2, 8 * (1 + SUMMANDS)))
            f = registers((M, 2, 4))
            for m in static(M):
                for i in static(2):
                    if SUMMANDS:
                        w[m, i] = UNPACK_SUMMANDS(zero, *codes[m, i])
                    else:
                        w[m, i] = UNPACK_CODES(*codes[m, i])
                    f[m, i] = UNPACK_BLOCK_SCALES(*scale[m, i], piece + 32 * i)
                if not last and (PEELED or chunk + KS < chunks):
                    for i in static(2):
                        at = piece + (64 * KS + 32 * i)
                        codes[m, i] = LOAD_CODES(tile[m], pieces, at)
                        scale[m, i] = LOAD_BLOCK_SCALES(tile[m], pieces, at)
            for m in static(M):
                acc[m] = add_products(*acc[m], *w[m], *f[m], *b_word[()], *factor[()], own_block)
    if FACTOR:
        for m in static(M):
            for i in static(2):
                acc[m, i] = acc[m, i] * row_factor[m, i]
    return acc[()]


@device
def from_lane(value, source):
    """The value of lane `source`; with a single row of activations that is this lane."""
    if TOKENS == 1:
        result = value
    else:
        result = shuffle(value, source)
    return result


@device
def decode_mma_8(
    tile: registers(M),
    codes: registers((M, 2, CODE_WORDS)),
    scale: registers((M, 2, BLOCK_SCALE_WORDS)),
    x,
    blocks,
    part,
):
    """Sums for TOKENS = 8 or 16 rows of activations: [M, TOKENS / 8, 4] registers.

    Element [m, n, i] belongs to matrix row lane / 4 + 8 (i / 2) of tile m and activation row 8n + 2 (lane %
    4) + i % 2, as in the C fragments of `mma.sync`. The parameters are those of `decode_mma_4`.
    """
    lane = thread() & 31
    sub = lane & 3
    quad = shift_right(lane, 2)
    chunks = (blocks + 3) // 4
    pieces = 64 * chunks
    acc = registers((M, TOKENS // 8, 4), 0.0)
    column = x + sub * code_plane_bytes(blocks) + 16 * quad
    scales = x + 4 * code_plane_bytes(blocks) + 32 * sub
    row_factor = registers((M, 2))
    if FACTOR:
        row_factor[()] = load_row_factors(*tile[()], blocks)
    for chunk in range(part, chunks, KS):
        b_word = registers((TOKENS // 8, 4, 4))
        d = registers((TOKENS // 8, 2, 4))
        s = registers((TOKENS // 8, 2, 4))
        s2 = registers((TOKENS // 8, 2, 4))
        for n in static(TOKENS // 8):
            for u in static(4):
                b_word[n, u] = load_int4(column + 16 * ((4 * chunk + u) * TOKENS + 8 * n))
            for j in static(2):
                at = scales + 16 * (chunk * TOKENS + 8 * n + j)
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
                a[i], b[i], a2[i], b2[i] = UNPACK_BLOCK_SCALES(*scale[m, i], piece + 32 * i)
            if chunk + KS < chunks:
                for i in static(2):
                    codes[m, i] = LOAD_CODES(tile[m], pieces, piece + (64 * KS + 32 * i))
                    scale[m, i] = LOAD_BLOCK_SCALES(tile[m], pieces, piece + (64 * KS + 32 * i))
            for u in static(4):
                source = bits_or(bits_and(lane, 28), u)  # the lane that holds the scales of this block
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
                        first[()] = mma_s8_k16(w[0, 2 * u], w[1, 2 * u], b_word[n, u, 0], 0, 0, 0, 0)
                        second[()] = mma_s8_k16(w[0, 2 * u], w[1, 2 * u], b_word[n, u, 2], 0, 0, 0, 0)
                        later[()] = mma_s8_k16(w[0, 2 * u + 1], w[1, 2 * u + 1], b_word[n, u, 1], 0, 0, 0, 0)
                        last[()] = mma_s8_k16(w[0, 2 * u + 1], w[1, 2 * u + 1], b_word[n, u, 3], 0, 0, 0, 0)
                    else:
                        f = w[0, 2 * u], w[1, 2 * u], w[0, 2 * u + 1], w[1, 2 * u + 1]
                        first[()] = mma_s8(*f, b_word[n, u, 0], b_word[n, u, 1], 0, 0, 0, 0)
                        second[()] = mma_s8(*f, b_word[n, u, 2], b_word[n, u, 3], 0, 0, 0, 0)
                    for i in static(4):
                        if TWO_SCALES:
                            total = wa[i // 2] * join_bytes(first[i], second[i])
                            total = total + wa2[i // 2] * join_bytes(later[i], last[i])
                            acc[m, n, i] = acc[m, n, i] + d[n, i % 2, u] * total
                        else:
                            total = join_bytes(first[i], second[i])
                            acc[m, n, i] = acc[m, n, i] + (wa[i // 2] * d[n, i % 2, u]) * total
                        if MINIMUM:
                            acc[m, n, i] = acc[m, n, i] + wb[i // 2] * s[n, i % 2, u]
                            if TWO_SCALES:
                                acc[m, n, i] = acc[m, n, i] + wb2[i // 2] * s2[n, i % 2, u]
    if FACTOR:
        for m in static(M):
            for n in static(TOKENS // 8):
                for i in static(4):
                    acc[m, n, i] = acc[m, n, i] * row_factor[m, i // 2]
    return acc[()]
