"""`decode_mma_4` with weights that go through shared memory, several chunks at once.

Each warp has a ring of STAGES slots in shared memory, each for a chunk of its M tiles. `cp.async` fills them
ahead of their use without taking registers, so that more bytes are on their way than lanes could hold, and
the blocks of the next launch find room to start loading. A chunk in its slot looks like a tile of only one
chunk: with SHARED, the functions of `unpack.py` read it there.
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    bits_and,
    commit_copies,
    copy_async,
    multiply_add_wide,
    shift_right,
    thread,
    wait_copies,
    wait_copies_all_but_1,
    wait_copies_all_but_2,
    wait_copies_all_but_3,
    wait_copies_all_but_4,
    warp_barrier,
)
from ..common.common import code_plane_bytes, join_bytes, scale_plane_bytes
from .decode_mma import add_products, load_factors, load_words

LOAD_CODES = UNPACK_CODES = LOAD_SCALES = UNPACK_SCALES = join_bytes  # of the weights' format: see unpack.py
CODE_WORDS = SCALE_WORDS = TWO_SCALES = MINIMUM = M = KS = TOKENS = STAGES = 0  # constants of the launch
PLANE_0 = PLANE_1 = PLANE_2 = SUPER_PLANE = SLOT_BYTES = 0  # see unpack.py
X_AHEAD = 0
ROUNDS = 2  # copies of a lane for the planes of a chunk from the second on


@device
def source_of(tile, pieces, unit):
    """Where 16 bytes of the planes of a chunk from the second on come from, and how far the next chunk's are.

    The address of number `unit` of the first chunk's; the bytes to the next chunk's; 1 if two chunks have the
    same, as those of a super-block.
    """
    at = tile + pieces * PLANE_0 + 16 * unit
    step = 64 * PLANE_1
    if unit >= 4 * PLANE_1:
        at = at + (pieces - 64) * PLANE_1
        step = 64 * PLANE_2
    if unit >= 4 * (PLANE_1 + PLANE_2):
        at = at + (pieces - 64) * PLANE_2
        step = 16 * SUPER_PLANE
    return at, step, 1 if unit >= 4 * (PLANE_1 + PLANE_2) else 0


@device
def copy_chunk(tile: registers(M), rest: registers((M, ROUNDS)), step: registers((ROUNDS, 2)), slot, chunk):
    """Start to copy a chunk of a warp's tiles to a slot.

    `rest` and `step` are what `source_of` returns for the lane's 16 bytes.
    """
    lane = thread() & 31
    for m in static(M):
        to = slot + m * SLOT_BYTES
        at = multiply_add_wide(chunk, 64 * PLANE_0, tile[m] + 16 * lane)
        for k in static(PLANE_0 // 8):
            copy_async(to + (512 * k + 16 * lane), at + 512 * k, 16)
        for k in static(ROUNDS):
            if 4 * PLANE_1 + 4 * PLANE_2 + SUPER_PLANE > 32 * k:
                if lane + 32 * k < 4 * PLANE_1 + 4 * PLANE_2 + SUPER_PLANE:
                    at = multiply_add_wide(shift_right(chunk, step[k, 1]), step[k, 0], rest[m, k])
                    copy_async(to + (64 * PLANE_0 + 512 * k + 16 * lane), at, 16)


@device
def start_ring(tile: registers(M), ring, blocks, part):
    """Start to copy a warp's first chunks to its ring, whose address is `ring`: all but one of its slots are
    filled. Returns what `copy_chunk` needs, `rest` and `step`.
    """
    lane = thread() & 31
    chunks = (blocks + 3) // 4
    rest = registers((M, ROUNDS), 0)
    step = registers((ROUNDS, 2), 0)
    for k in static(ROUNDS):
        if 4 * PLANE_1 + 4 * PLANE_2 + SUPER_PLANE > 32 * k:
            for m in static(M):
                rest[m, k], step[k, 0], step[k, 1] = source_of(tile[m], 64 * chunks, lane + 32 * k)
    for s in static(STAGES - 1):
        if part + s * KS < chunks:
            copy_chunk(*tile[()], *rest[()], *step[()], ring + s * M * SLOT_BYTES, part + s * KS)
        commit_copies()
    return rest[()] + step[()]


@device
def wait_for_oldest():
    """Wait for the oldest of STAGES - 1 groups of copies."""
    if STAGES == 2:
        wait_copies()
    elif STAGES == 3:
        wait_copies_all_but_1()
    elif STAGES == 4:
        wait_copies_all_but_2()
    elif STAGES == 5:
        wait_copies_all_but_3()
    else:
        wait_copies_all_but_4()


@device
def decode_ring_4(
    tile: registers(M),
    rest: registers((M, ROUNDS)),
    step: registers((ROUNDS, 2)),
    ring,
    x,
    blocks,
    part,
):
    """What `decode_mma_4` returns. `rest` and `step` are what `start_ring` returned."""
    lane = thread() & 31
    sub = lane & 3
    quad = shift_right(lane, 2)
    chunks = (blocks + 3) // 4
    plane = scale_plane_bytes(blocks)
    acc = registers((M, 2), 0.0)
    # As in `decode_mma_4`
    column = x + sub * code_plane_bytes(blocks) + 16 * (shift_right(quad, 1) & (TOKENS - 1)) + 8 * (quad & 1)
    column_block = shift_right(quad, 1 + TOKENS // 2)
    column = column + 16 * TOKENS * column_block
    own_block = shift_right(sub, TOKENS // 2)
    scales = x + 4 * code_plane_bytes(blocks) + 16 * (sub & (TOKENS - 1)) + 4 * own_block
    mask = registers(4 // TOKENS)
    for u in static(4 // TOKENS):
        mask[u] = -1 if column_block == u else 0
    words = registers((TOKENS, 2))
    factors = registers((TOKENS, 3))
    first = part if part < chunks else chunks - 1
    if X_AHEAD:
        words[()] = load_words(column, first)
        factors[()] = load_factors(scales, plane, first)
    slot = ring
    free = ring + (STAGES - 1) * M * SLOT_BYTES
    for chunk in range(part, chunks, KS):
        wait_for_oldest()
        warp_barrier()  # all lanes see all copies, and have read the slot that is filled next
        if chunk + (STAGES - 1) * KS < chunks:
            copy_chunk(*tile[()], *rest[()], *step[()], free, chunk + (STAGES - 1) * KS)
        commit_copies()
        b = registers((4, 2))
        if not X_AHEAD:
            words[()] = load_words(column, chunk)
            factors[()] = load_factors(scales, plane, chunk)
        factor = registers((TOKENS, 3))
        for g in static(TOKENS):
            for u in static(4 // TOKENS):
                for h in static(2):
                    b[g * (4 // TOKENS) + u, h] = bits_and(words[g, h], mask[u])
        factor[()] = factors[()]
        if X_AHEAD and chunk + KS < chunks:
            words[()] = load_words(column, chunk + KS)
            factors[()] = load_factors(scales, plane, chunk + KS)
        for m in static(M):
            w = registers((2, 8))
            f = registers((2, 4))
            for i in static(2):
                at = slot + m * SLOT_BYTES
                w[i] = UNPACK_CODES(*LOAD_CODES(at, 64, lane + 32 * i))
                f[i] = UNPACK_SCALES(*LOAD_SCALES(at, 64, lane + 32 * i), lane)
            acc[m] = add_products(*acc[m], *w[()], *f[()], *b[()], *factor[()], own_block)
        free = slot
        slot = slot + M * SLOT_BYTES
        if slot == ring + STAGES * M * SLOT_BYTES:
            slot = ring
    return acc[()]
