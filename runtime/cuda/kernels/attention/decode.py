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
    div_u32,
    launch_dependents,
    ldmatrix,
    ldmatrix_transposed,
    load_float2,
    load_int,
    load_int4,
    load_shared,
    mma_f16,
    pack_f16,
    shared,
    shift_right,
    store_shared,
    store_shared_int4,
    thread,
    wait_copies,
    wait_copies_all_but_1,
    wait_copies_all_but_2,
    wait_for_grid,
    warp_barrier,
)
from ..common.common import tanh
from .cache import PagedCache, block_table_of, head_in_page, load_eight, page_of, store_cached
from .prepare_qk import QKPreparation, load_normed_head, rotated_dim
from .scores import MASKED, NO_MAXIMUM, ScoreArguments, quad_sum, softmax_16_tokens, window_start
from .split_kv_merge import SplitOutput, merge_splits
from .split_plan import ENTRY
from .tile import store_halves, swizzled

G = HD = KV = CHUNKS = STAGES = WARPS = SOFTCAP = WINDOW = PAGE = PDL = 0  # constants: see `decode_attention`
SINGLE_ROW = PLANNED = PREPARE = Q_NORM = K_NORM = 0


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
def fetch_tile(stage, cache: PagedCache, block_table, tile, end, position, kv_head, kv_heads):
    """Start copying a tile, the keys and values of 16 tokens, to shared memory, by a warp, as float16.

    Nothing is copied from tile `end` on; tokens behind `position` become zeros.
    """
    if tile < end:
        page = load_int(block_table + 4 * (tile >> 2))
        keys = head_in_page(cache.keys, page, kv_head, kv_heads)
        values = head_in_page(cache.values, page, kv_head, kv_heads)
        for i in range(thread() & 31, 2 * HD, 32):
            row = div_u32(i, HD // 8)
            piece = i - row * (HD // 8)
            slot = 16 * (tile & 3) + row
            to = stage + swizzled(row, piece)
            inside = 16
            if 16 * tile + row > position:
                inside = 0
            if KV == 16:
                copy_async(to, keys + 2 * (slot * HD + 8 * piece), inside)
                copy_async(to + 32 * HD, values + 2 * (slot * HD + 8 * piece), inside)
            elif inside > 0:
                store_halves(to, *load_eight(keys, slot, 8 * piece))
                store_halves(to + 32 * HD, *load_eight(values, slot, 8 * piece))
            else:
                store_shared_int4(to, 0, 0, 0, 0)
                store_shared_int4(to + 32 * HD, 0, 0, 0, 0)
    commit_copies()


def decode_attention(args: DecodeAttentionArguments) -> None:
    """out = softmax(scores) v, float32 [rows, heads · HD]; pages have 64 tokens.

    Grid: (kv_heads · CHUNKS, most splits of a context, rows), with PLANNED (kv_heads · CHUNKS, items of the
    plan), of 32 · WARPS threads. A block takes G query heads of one key-value head and one split of the row's
    context. The warps of a block take its tiles of 16 tokens in turn; each copies its own tiles to shared
    memory, STAGES - 1 ahead, and keeps an online softmax of its own. `merge_splits` merges the results of
    warps and blocks.

    With PREPARE this kernel also does what `prepare_qk` does, for a step with one row: each block prepares
    its own queries, and the block whose split ends with the row writes the row's key and value to the cache.

    Constants besides those of `cache.py`, `scores.py`, `tile.py` and `prepare_qk.py`:
        G           query heads of a block, 16 at most
        HD          dimensions of a head, a multiple of 16; as DP, VD and VP
        WARPS       of a block
        CHUNKS      blocks that share a key-value head
        STAGES      2, 3 or 4 tiles that a warp has room for
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
        count = (position >> 4) + 1 - first
        split = div_u32(count + blocks_y() - 1, blocks_y())
        split = (split + WARPS - 1) // WARPS * WARPS
        splits = div_u32(count + split - 1, split)
        if block_y() >= splits:
            return
        first = first + block_y() * split
        end = first + split
        if end > (position >> 4) + 1:
            end = (position >> 4) + 1
    head = block_x() * G
    kv_head = div_u32(block_x(), CHUNKS)
    stages = shared() + warp * (STAGES * 64 * HD)
    first = first + warp
    older = position >> 4 if SINGLE_ROW else 0  # tiles before this one hold no token of the step
    if SINGLE_ROW:
        for s in static(STAGES - 1):
            tile = first + s * WARPS
            if tile < older:
                fetch_tile(
                    stages + s * 64 * HD, args.cache, block_table, tile, end, position, kv_head, args.kv_heads
                )
        if PDL:
            wait_for_grid()
    prepared = shared() + WARPS * STAGES * 64 * HD
    if PREPARE:
        items = G
        if end > position >> 4:
            items = G + 2
        for item in range(warp, items, WARPS):
            kind = 0
            source = args.q.address + 4 * (head + item) * HD
            if item >= G:
                kind = item - G + 1
                source = args.k + 4 * kv_head * HD
                if kind == 2:
                    source = args.v + 4 * kv_head * HD
            copy = prepared + 4 * item * HD
            q_norm = args.preparation.q_norm + 4 * HD * (head + item) * (Q_NORM - 1)
            k_norm = args.preparation.k_norm + 4 * HD * kv_head * (K_NORM - 1)
            load_normed_head(source, copy, kind, q_norm, k_norm, args.preparation.eps)
            if kind == 0:
                value = registers((HD + 31) // 32, 0.0)
                for j in static((HD + 31) // 32):
                    if 32 * j + lane < HD:
                        value[j] = rotated_dim(
                            copy, 32 * j + lane, 0, args.preparation.pairs, args.preparation.angles
                        )
                warp_barrier()
                for j in static((HD + 31) // 32):
                    if 32 * j + lane < HD:
                        store_shared(copy + 4 * (32 * j + lane), value[j])
            else:
                page = page_of(block_table, position)
                pool = args.cache.keys if kind == 1 else args.cache.values
                part = head_in_page(pool, page, kv_head, args.kv_heads)
                for dim in range(lane, HD, 32):
                    entry = rotated_dim(copy, dim, kind, args.preparation.pairs, args.preparation.angles)
                    store_cached(part, position & ((1 << PAGE) - 1), dim, entry)
        barrier()
    for s in static(STAGES - 1):
        tile = first + s * WARPS
        if tile >= older:
            fetch_tile(
                stages + s * 64 * HD, args.cache, block_table, tile, end, position, kv_head, args.kv_heads
            )
    query = registers((HD // 16, 4))
    for k in static(HD // 16):
        for i in static(4):
            query[k, i] = 0
            if i % 2 == 0 or G > 8:
                of_head = (lane >> 2) + 8 * (i % 2)
                if of_head < G:
                    dim = 16 * k + 2 * (lane & 3) + 8 * (i // 2)
                    if PREPARE:
                        at = prepared + 4 * (of_head * HD + dim)
                        a, b = load_shared(at), load_shared(at + 4)
                    else:
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
        fetch_tile(
            stages + following * (64 * HD),
            args.cache,
            block_table,
            tile + (STAGES - 1) * WARPS,
            end,
            position,
            kv_head,
            args.kv_heads,
        )
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
    barrier()
    for r in static(2):
        total[r] = quad_sum(total[r])
        of_head = (lane >> 2) + 8 * r
        if of_head < G:
            to = shared() + 4 * (warp * G + of_head) * (HD + 2)
            if (lane & 3) == 0:
                store_shared(to + 4 * HD, best[r])
                store_shared(to + 4 * HD + 4, total[r])
            for n in static(HD // 8):
                for i in static(2):
                    store_shared(to + 4 * (8 * n + 2 * (lane & 3) + i), acc[n, 2 * r + i])
    merge_splits(row, head, number, splits, args.scores.sinks, args.output)
