"""Split-KV attention of single rows on tensor cores, as `simt.py` does it on CUDA cores.

A block's query heads are the rows of the matrix products: mma needs 16 rows, and up to 16 heads share a
key-value head, so that one load of the cache serves all of them.

Dao et al. 2022, "FlashAttention"; Dao et al. 2023, "Flash-Decoding for long-context inference".
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
    barrier,
    block_x,
    block_y,
    block_z,
    blocks_y,
    commit_copies,
    copy_async,
    cosine,
    div_u32,
    launch_dependents,
    ldmatrix,
    ldmatrix_transposed,
    load_constant,
    load_float,
    load_float2,
    load_int,
    load_int4,
    load_shared,
    load_shared_int,
    load_shared_int4,
    mma_f16,
    pack_f16,
    rsqrt,
    shared,
    shift_right,
    sine,
    store_shared,
    store_shared2,
    store_shared_int4,
    store_shared_short,
    thread,
    to_float,
    wait_copies,
    wait_copies_all_but_1,
    wait_copies_all_but_2,
    wait_for_grid,
    warp_barrier,
)
from ..common.common import quotient, tanh, warp_sum
from .cache import PagedCache, block_table_of, head_in_page, load_eight, store_cached
from .prepare_qk import QKPreparation
from .scores import MASKED, NO_MAXIMUM, ScoreArguments, quad_sum, softmax_16_tokens, window_start
from .split_kv_merge import SplitOutput, merge_splits
from .split_plan import ENTRY
from .tile import store_halves, swizzled

G = HD = KV = CHUNKS = STAGES = WARPS = SOFTCAP = WINDOW = PAGE = PDL = 0  # constants: see `decode_attention`
SINGLE_ROW = PLANNED = PREPARE = Q_NORM = K_NORM = ROPE = INTERLEAVED = ALONE = 0
INVERSE_HD = 0.0


class DecodeAttentionArguments(KernelArguments):
    """What `decode_attention` takes."""

    q: Region  # float32 [rows, heads · HD]
    cache: PagedCache
    scores: ScoreArguments
    output: SplitOutput
    kv_heads: int
    k: int  # with PREPARE: the row's keys, float32 [kv_heads · HD]
    v: int  # with PREPARE: the row's values
    preparation: QKPreparation
    plan: int = 0  # with PLANNED: the items of `split_plan.plan_splits`


@device
def fetch_tile(
    stage, places: registers(HD // 16), cache: PagedCache, block_table, page, tile, end, n, kv_head, kv_heads
):
    """Start copying a tile, the keys and values of 16 tokens, to shared memory, by a warp, as float16.

    `places` are where in a tile this lane's pieces of 16 bytes belong, and `page` is the tile's. Nothing is
    copied from tile `end` on; tokens from the n-th of the sequence on become zeros. Returns the page of the
    warp's next tile, so that no copy waits for the block table.
    """
    if tile < end:
        keys = head_in_page(cache.keys, page, kv_head, kv_heads)
        values = head_in_page(cache.values, page, kv_head, kv_heads)
        if tile + WARPS < end:
            page = load_int(block_table + 4 * ((tile + WARPS) >> 2))
        lane = thread() & 31
        pieces = (n - 16 * tile) * (HD // 8)
        if KV == 16:
            at = 32 * HD * (tile & 3) + 16 * lane
            for i in static(HD // 16):
                inside = 16
                if lane + 32 * i >= pieces:
                    inside = 0
                copy_async(stage + places[i], keys + at + 512 * i, inside)
                copy_async(stage + places[i] + 32 * HD, values + at + 512 * i, inside)
        else:
            for i in range(lane, 2 * HD, 32):
                row = quotient(i, HD // 8)
                piece = i - row * (HD // 8)
                slot = 16 * (tile & 3) + row
                to = stage + swizzled(row, piece)
                if i < pieces:
                    store_halves(to, *load_eight(keys, slot, 8 * piece))
                    store_halves(to + 32 * HD, *load_eight(values, slot, 8 * piece))
                else:
                    store_shared_int4(to, 0, 0, 0, 0)
                    store_shared_int4(to + 32 * HD, 0, 0, 0, 0)
    commit_copies()
    return page


@device
def norm_weights(item, head, kv_head, preparation: QKPreparation):
    """This lane's dimensions of the weights of the norm of a query (item < G) or of the key (item G); 1 where
    there is no norm."""
    weights = registers((HD + 31) // 32, 1.0)
    address = 0
    if Q_NORM:
        if item < G:
            address = preparation.q_norm + 4 * HD * (head + item) * (Q_NORM - 1)
    if K_NORM:
        if item == G:
            address = preparation.k_norm + 4 * HD * kv_head * (K_NORM - 1)
    if address != 0:
        for j in static((HD + 31) // 32):
            if 32 * j + (thread() & 31) < HD:
                weights[j] = load_constant(address + 4 * (32 * j + (thread() & 31)))
    return weights[()]


@device
def store_angles(to, position, preparation: QKPreparation):
    """Cosines, and behind them sines, of RoPE at a position, to shared memory: as `rope_angles`."""
    for j in static((HD // 2 + 32 * WARPS - 1) // (32 * WARPS)):
        i = thread() + 32 * WARPS * j
        if i < preparation.pairs:
            angle = to_float(position) * load_constant(preparation.frequencies + 4 * i)
            store_shared(to + 4 * i, cosine(angle) * preparation.factor)
            store_shared(to + 4 * (preparation.pairs + i), sine(angle) * preparation.factor)


def decode_attention(args: DecodeAttentionArguments) -> None:
    """out = softmax(scores) v, float32 [rows, heads · HD]; pages have 64 tokens.

    Grid: (kv_heads · CHUNKS, most splits of a context, rows), with PLANNED (kv_heads · CHUNKS, items of the
    plan), of 32 · WARPS threads. A block takes G query heads of one key-value head and one split of the row's
    context. The warps of a block take its tiles of 16 tokens in turn; each copies its own tiles to shared
    memory, STAGES - 1 ahead, and keeps an online softmax of its own. `merge_splits` merges the results of
    warps and blocks. A context of up to ALONE tiles a warp is not split, since what blocks do to merge takes
    as long as a block needs for these.

    With PREPARE this kernel also does what `prepare_qk` does, for a step with one row: each block prepares
    its own queries, and the block whose split ends with the row writes the row's key and value to the cache,
    and to shared memory for itself.

    A launch at a short context is a chain of waits and little else. So everything that earlier launches of
    the step do not write is read, and the angles of RoPE are computed, before these are done; and the code is
    kept short, since each launch runs most of it once and the instructions must be fetched.

    Shared memory: the tiles, 64 · HD bytes each; behind them with PREPARE float16 [G + 2, HD], which are
    queries, the row's key and its value; in their place later the results, see `merge_splits`.

    Constants besides those of `cache.py`, `scores.py`, `tile.py` and `prepare_qk.py`:
        G           query heads of a block, 16 at most
        HD          dimensions of a head, a multiple of 16; as DP, VD and VP
        WARPS       of a block
        CHUNKS      blocks that share a key-value head
        STAGES      2, 3 or 4 tiles that a warp has room for
        ALONE       tiles that each warp takes before a context is split; without PLANNED
        SINGLE_ROW  1: the step has one row. Older tokens were in the cache before the step, so that their
                    tiles are copied before the launches in front are done
        PLANNED     1: which split of which row a block takes is in a plan: see `split_plan.py`
        PREPARE     1: queries and keys are neither normed nor rotated yet, nor in the cache
        EMIT        1: the result is also written in 8 bits; 2: it is written as float16 instead
    """
    if PDL:
        launch_dependents()
    if PDL and not SINGLE_ROW:
        wait_for_grid()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    if PLANNED:
        entry = registers(8)
        entry[0], entry[1], entry[2], entry[3] = load_int4(args.plan + ENTRY * block_y())
        entry[4], entry[5], entry[6], entry[7] = load_int4(args.plan + ENTRY * block_y() + 16)
        row, number, splits, first, end = entry[0], entry[1], entry[2], entry[3], entry[4]
        position, low = entry[5], entry[6]
        if row < 0:
            return
        block_table = block_table_of(args.cache, row)
    else:
        row = block_z()
        number = block_y()
        position = load_int(args.cache.positions + 4 * row)
        block_table = block_table_of(args.cache, row)
        low = window_start(position, args.scores.window)
        first = low >> 4
        end = (position >> 4) + 1
        splits = 1
        if end - first > ALONE * WARPS:
            split = div_u32(end - first + blocks_y() - 1, blocks_y())
            split = (split + WARPS - 1) // WARPS * WARPS
            splits = div_u32(end - first + split - 1, split)
            first = first + number * split
            if end > first + split:
                end = first + split
        if number >= splits:
            return
    head = block_x() * G
    kv_head = block_x()
    if CHUNKS > 1:
        kv_head = div_u32(kv_head, CHUNKS)
    stages = shared() + warp * (STAGES * 64 * HD)
    first = first + warp
    places = registers(HD // 16)
    for i in static(HD // 16):
        place_row = quotient(lane + 32 * i, HD // 8)
        places[i] = swizzled(place_row, lane + 32 * i - place_row * (HD // 8))
    # Tokens that are in the cache, at the latest when the launch in front is done
    known = position + 1 - PREPARE
    older = 0  # tiles before this one hold no token of the step that is still to come
    if SINGLE_ROW:
        older = position >> 4
    if PREPARE:
        older = 1 << 30
    page = 0
    if first < end:
        page = load_int(block_table + 4 * (first >> 2))
    if SINGLE_ROW:
        for s in static(STAGES - 1):
            if first + s * WARPS < older:
                page = fetch_tile(
                    stages + s * 64 * HD,
                    *places[()],
                    args.cache,
                    block_table,
                    page,
                    first + s * WARPS,
                    end,
                    known,
                    kv_head,
                    args.kv_heads,
                )
    prepared = shared() + WARPS * STAGES * 64 * HD
    if PREPARE:
        scratch = stages + (STAGES - 1) * 64 * HD  # this warp's last stage, which is free for now
        own_page = load_int(block_table + 4 * (position >> PAGE))
        weights = registers((HD + 31) // 32)
        weights[()] = norm_weights(warp, head, kv_head, args.preparation)
        cos = registers((HD + 31) // 32, 1.0)
        sin = registers((HD + 31) // 32, 0.0)
        other = registers((HD + 31) // 32, 0)
        if ROPE:
            angles = shared() + (STAGES - 1) * 64 * HD + 4 * HD  # in the last stage of warp 0
            store_angles(angles, position, args.preparation)
            barrier()
            pairs = args.preparation.pairs
            for j in static((HD + 31) // 32):
                dim = 32 * j + lane
                other[j] = scratch + 4 * dim
                if dim < 2 * pairs:
                    if INTERLEAVED:
                        pair = dim >> 1
                        other[j] = scratch + 4 * (dim ^ 1)
                        sign = 2.0 * to_float(dim & 1) - 1.0
                    else:
                        pair = dim
                        other[j] = scratch + 4 * (dim + pairs)
                        sign = -1.0
                        if dim >= pairs:
                            pair = dim - pairs
                            other[j] = scratch + 4 * pair
                            sign = 1.0
                    cos[j] = load_shared(angles + 4 * pair)
                    sin[j] = sign * load_shared(angles + 4 * (pairs + pair))
    if PDL and SINGLE_ROW and not PREPARE:
        wait_for_grid()
    if PREPARE:
        items = G
        if end > position >> 4:
            items = G + 2
        for item in range(warp, items, WARPS):
            source = args.q.address + 4 * (head + item) * HD
            if item == G:
                source = args.k + 4 * kv_head * HD
            if item > G:
                source = args.v + 4 * kv_head * HD
            value = registers((HD + 31) // 32, 0.0)
            if PDL:  # in the loop, so that what is the same for all items is computed before
                wait_for_grid()
            for j in static((HD + 31) // 32):
                if 32 * j + lane < HD:
                    value[j] = load_float(source + 4 * (32 * j + lane))
            if Q_NORM or K_NORM:
                squares = 0.0
                for j in static((HD + 31) // 32):
                    squares = squares + value[j] * value[j]
                inverse = rsqrt(warp_sum(squares) * INVERSE_HD + args.preparation.eps)
                factor = 1.0
                if Q_NORM:
                    if item < G:
                        factor = inverse
                if K_NORM:
                    if item == G:
                        factor = inverse
                for j in static((HD + 31) // 32):
                    value[j] = value[j] * factor * weights[j]
                if item + WARPS < items:
                    weights[()] = norm_weights(item + WARPS, head, kv_head, args.preparation)
            if ROPE:
                if item <= G:
                    for j in static((HD + 31) // 32):
                        if 32 * j + lane < HD:
                            store_shared(scratch + 4 * (32 * j + lane), value[j])
                    warp_barrier()
                    for j in static((HD + 31) // 32):
                        if 32 * j + lane < HD:
                            value[j] = value[j] * cos[j] + load_shared(other[j]) * sin[j]
                    warp_barrier()
            if item < G:
                for j in static((HD + 31) // 32):
                    dim = 32 * j + lane
                    if dim < HD:
                        to = prepared + swizzled(item, dim >> 3) + 2 * (dim & 7)
                        store_shared_short(to, pack_f16(value[j] * args.scores.scale, 0.0))
            else:
                pool = args.cache.keys
                if item > G:
                    pool = args.cache.values
                part = head_in_page(pool, own_page, kv_head, args.kv_heads)
                for j in static((HD + 31) // 32):
                    dim = 32 * j + lane
                    if dim < HD:
                        stored = store_cached(part, position & ((1 << PAGE) - 1), dim, value[j])
                        store_shared_short(prepared + 2 * (item * HD + dim), pack_f16(stored, 0.0))
        barrier()
    else:
        for s in static(STAGES - 1):
            if first + s * WARPS >= older:
                page = fetch_tile(
                    stages + s * 64 * HD,
                    *places[()],
                    args.cache,
                    block_table,
                    page,
                    first + s * WARPS,
                    end,
                    known,
                    kv_head,
                    args.kv_heads,
                )
    query = registers((HD // 16, 4))
    for k in static(HD // 16):
        for i in static(4):
            query[k, i] = 0
            if i % 2 == 0 or G > 8:
                of_head = (lane >> 2) + 8 * (i % 2)
                if of_head < G:
                    if PREPARE:
                        at = prepared + swizzled(of_head, 2 * k + i // 2)
                        query[k, i] = load_shared_int(at + 4 * (lane & 3))
                    else:
                        dim = 16 * k + 2 * (lane & 3) + 8 * (i // 2)
                        a, b = load_float2(
                            args.q.address + row * args.q.stride + 4 * ((head + of_head) * HD + dim)
                        )
                        query[k, i] = pack_f16(a * args.scores.scale, b * args.scores.scale)
    best = registers(2, NO_MAXIMUM)
    total = registers(2, 0.0)
    acc = registers((HD // 8, 4), 0.0)
    stage = 0
    for tile in range(first, end, WARPS):
        if STAGES == 4:
            wait_copies_all_but_2()
        elif STAGES == 3:
            wait_copies_all_but_1()
        else:
            wait_copies()
        warp_barrier()
        current = stages + stage * (64 * HD)
        stage = stage + 1
        if stage == STAGES:
            stage = 0
        following = stage + STAGES - 2
        if following >= STAGES:
            following = following - STAGES
        page = fetch_tile(
            stages + following * (64 * HD),
            *places[()],
            args.cache,
            block_table,
            page,
            tile + (STAGES - 1) * WARPS,
            end,
            known,
            kv_head,
            args.kv_heads,
        )
        if PREPARE:
            if tile == position >> 4:  # the row's own key and value
                for i in static((HD + 127) // 128):
                    if 32 * i + lane < HD // 4:
                        half = 0
                        if 32 * i + lane >= HD // 8:
                            half = 1
                        piece = 32 * i + lane - half * (HD // 8)
                        w = registers(4)
                        w[()] = load_shared_int4(prepared + 2 * HD * (G + half) + 16 * piece)
                        store_shared_int4(current + 32 * HD * half + swizzled(position & 15, piece), *w[()])
                warp_barrier()
        score = registers((2, 4), 0.0)
        for k in static(HD // 16):
            b = registers((2, 2))
            b[0, 0], b[0, 1], b[1, 0], b[1, 1] = ldmatrix(
                current + swizzled((lane & 7) + (lane >> 4) * 8, 2 * k + ((lane >> 3) & 1))
            )
            for n in static(2):
                score[n] = mma_f16(*query[k], *b[n], *score[n])
        for n in static(2):
            for i in static(4):
                if SOFTCAP:
                    score[n, i] = args.scores.softcap * tanh(score[n, i])
                token = 16 * tile + 8 * n + 2 * (lane & 3) + i % 2
                if token > position:
                    score[n, i] = MASKED
                if WINDOW:
                    if token < low:
                        score[n, i] = MASKED
        shrink = registers(2)
        score[()], best[()], total[()], shrink[()] = softmax_16_tokens(*score[()], *best[()], *total[()])
        p = registers(4)
        p[0] = pack_f16(score[0, 0], score[0, 1])
        p[1] = pack_f16(score[0, 2], score[0, 3])
        p[2] = pack_f16(score[1, 0], score[1, 1])
        p[3] = pack_f16(score[1, 2], score[1, 3])
        for n in static(HD // 8):
            for i in static(4):
                acc[n, i] = acc[n, i] * shrink[i // 2]
        for n in static(HD // 16):
            b = registers((2, 2))
            b[0, 0], b[0, 1], b[1, 0], b[1, 1] = ldmatrix_transposed(
                current + 32 * HD + swizzled((lane & 7) + ((lane >> 3) & 1) * 8, 2 * n + (lane >> 4))
            )
            for m in static(2):
                acc[2 * n + m] = mma_f16(*p[()], *b[m], *acc[2 * n + m])
    wait_copies()
    warp_barrier()
    for r in static(2):
        if r == 0 or G > 8:
            total[r] = quad_sum(total[r])
            of_head = (lane >> 2) + 8 * r
            if of_head < G:
                to = stages + 4 * of_head * (HD + 8)
                if (lane & 3) == 0:
                    store_shared2(to + 4 * HD, best[r], total[r])
                for n in static(HD // 8):
                    store_shared2(to + 4 * (8 * n + 2 * (lane & 3)), acc[n, 2 * r], acc[n, 2 * r + 1])
    merge_splits(row, head, number, splits, args.scores.sinks, args.output, STAGES * 64 * HD, 4 * (HD + 8))
