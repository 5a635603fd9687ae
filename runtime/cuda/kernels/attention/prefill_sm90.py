"""Attention of the rows of one prompt over the paged cache for compute capability 9.0, with `wgmma` (sm_90a).

Each of the two warpgroups of a block attends 64 rows of a head. Queries, unless heads are too large, and
probabilities are A operands of `wgmma` in registers; keys and values are B operands, in shared memory. While
the tensor cores multiply probabilities of one page with its values, the lanes make probabilities of the next
page's scores.

Keys and values come to shared memory as rows of 128 bytes, 64 dimensions of a token, whose 16-byte parts are
permuted by an exclusive or with the row's number, the 128-byte swizzle of `wgmma`.

Results are only rescaled when a row's maximum has grown by more than GROWTH, so that hardly ever more than
the first page does: probabilities above 1 are as exact in float16 as those below.

Shah et al. 2024, "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision".
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
    add_words,
    any_above,
    barrier,
    block_x,
    block_y,
    blocks_y,
    commit_copies,
    copy_async_2,
    copy_async_4,
    copy_async_8,
    div_near,
    div_u32,
    exp2,
    fence_async_proxy,
    load_constant,
    load_float2,
    load_int,
    maximum,
    multiply_add_wide,
    pack_f16,
    pass_turn,
    shared,
    shift_left,
    shift_right,
    shuffle_xor,
    store_float,
    store_int,
    store_shared_int,
    thread,
    wait_copies,
    wait_copies_all_but_1,
    wait_for_turn,
    wgmma_64,
    wgmma_early_result_64,
    wgmma_late_result_64,
    wgmma_late_result_128,
    wgmma_late_result_256,
    wgmma_product_64,
    wgmma_result_64,
    wgmma_result_128,
    wgmma_result_256,
    wgmma_shared_64,
    wgmma_shared_product_64,
    wgmma_turned_64,
    wgmma_turned_128,
    wgmma_turned_256,
)
from ..common.common import begin, tanh
from .cache import PagedCache, block_table_of, head_in_page, load_eight
from .scores import MASKED, NO_MAXIMUM, ScoreArguments, quad_maximum, quad_sum, window_start
from .tile import store_halves

# Constants: see `prefill_attention_sm90`.
HD = GROUP = KV = HEADS = WINDOW = SOFTCAP = SINKS = HALVES = 0
TURNS = 0
STAGES = 0
GROWTH = 8.0  # log2 of the largest probability


def shared_bytes(dims: int, stages: int) -> int:
    """Bytes of shared memory of a block: keys and values, queries if heads are large, and the alignment."""
    return (256 * stages + (256 if dims > 128 else 0)) * dims + 1024


class WidePrefillAttentionArguments(KernelArguments):
    """What `prefill_attention_sm90` takes."""

    q: Region  # float32 [rows, heads · HD]
    cache: PagedCache
    scores: ScoreArguments
    out: Region  # float32 [rows, heads · HD]
    rows: int
    kv_heads: int
    halves: Region  # with HALVES: `out` as float16 in the order of `convert_to_f16`


@device
def keys_at(tiles, stage):
    """Where the keys of a stage lie in shared memory."""
    if HD <= 128:
        place = tiles + stage * (256 * HD)
    else:
        place = tiles + stage * (128 * HD)
    return place


@device
def values_at(tiles, stage):
    """Where the values of a stage lie in shared memory."""
    if HD <= 128:
        place = tiles + stage * (256 * HD) + 128 * HD
    else:
        place = tiles + stage * (128 * HD) + STAGES * 128 * HD
    return place


@device
def fetch(to, row, piece, source):
    """Start copying the keys or the values of a page to shared memory, by 256 threads, as float16.

    A thread copies 16-byte piece number `piece` of a row and of further rows; `to` is where the first goes,
    `source` where it is in the page (fp16) or the page itself (codes).
    """
    if KV == 16:
        if HD == 256:
            copy_async_8(to, source)
        elif HD == 128:
            copy_async_4(to, source)
        else:
            copy_async_2(to, source)
    else:
        for i in static(HD // 32):
            place = to + i * (262144 // HD)
            store_halves(place, *load_eight(source, row + i * (2048 // HD), 8 * piece))


@device
def next_stage(stage):
    """The number of the stage behind one, in 32 bits."""
    stage = add_words(stage, 1)
    if stage == STAGES:
        stage = add_words(0, 0)
    return stage


@device
def probabilities(score: registers((8, 4)), best: registers(2), total: registers(2)):
    """Turn scores of 64 tokens into probabilities, as `scores.online_softmax` does; but `best` only grows if
    it is by more than GROWTH.
    """
    shrink = registers(2, 1.0)
    highest = registers(2)
    for r in static(2):
        highest[r] = best[r]
        for n in static(8):
            highest[r] = maximum(highest[r], maximum(score[n, 2 * r], score[n, 2 * r + 1]))
    if any_above(maximum(highest[0] - best[0], highest[1] - best[1]), GROWTH):
        for r in static(2):
            highest[r] = quad_maximum(highest[r])
            if highest[r] - best[r] > GROWTH:
                shrink[r] = exp2(best[r] - highest[r])
                best[r] = highest[r]
                total[r] = total[r] * shrink[r]
    for r in static(2):
        for n in static(8):
            for i in static(2):
                score[n, 2 * r + i] = exp2(score[n, 2 * r + i] - best[r])
                total[r] = total[r] + score[n, 2 * r + i]
    return score[()], best[()], total[()], shrink[()]


@device
def masked(score: registers((8, 4)), scores: ScoreArguments, page, lowest, last):
    """Cap the scores of a page, and mask tokens that rows do not see; `lowest` is the position of the first
    of the warp's 16 rows, `last` that of the last row that the block may have.
    """
    if SOFTCAP:
        for n in static(8):
            for i in static(4):
                score[n, i] = scores.softcap * tanh(score[n, i])
    begins = shift_left(page, 6)
    for r in static(2):
        position = add_words(lowest, shift_right(thread() & 31, 2) + 8 * r)
        if position > last:  # a row that was added and repeats the last one
            position = last
        if add_words(begins, 63) > lowest:
            ahead = add_words(position - begins - 2 * (thread() & 3), 0)  # in 32 bits
            for n in static(8):
                for i in static(2):
                    if 8 * n + i > ahead:
                        score[n, 2 * r + i] = MASKED
        if WINDOW:
            if begins <= lowest + 15 - scores.window:
                behind = add_words(position - begins - 2 * (thread() & 3) - scores.window, 0)
                for n in static(8):
                    for i in static(2):
                        if 8 * n + i <= behind:
                            score[n, 2 * r + i] = MASKED
    return score[()]


@device
def packed(score: registers((8, 4))):
    """Probabilities of 64 tokens as the A operand of `wgmma`."""
    p = registers(16)
    for k in static(4):
        for i in static(2):
            p[4 * k + 2 * i] = pack_f16(score[2 * k + i, 0], score[2 * k + i, 1])
            p[4 * k + 2 * i + 1] = pack_f16(score[2 * k + i, 2], score[2 * k + i, 3])
    return p[()]


def prefill_attention_sm90(args: WidePrefillAttentionArguments) -> None:
    """out = softmax(scores) v of rows that are consecutive positions of one sequence; pages have 64 tokens.

    Grid: (heads / HEADS, ⌈rows / (128 / HEADS)⌉), of 256 threads; shared memory: `shared_bytes`. The blocks
    with the most pages are the first ones.

    Constants besides those of `cache.py` and `scores.py`:
        HD      dimensions of a head: 64, 128 or 256
        STAGES  pages of keys and of values that shared memory has room for: 5; or 2 with heads of 256, where
                values are copied one page later than keys
        GROUP   query heads that share a key-value head
        HALVES  1: the result is stored as float16, for products alone
        TURNS   1: the warpgroups start their products of a page in turn, so that one makes probabilities
                while the products of the other run; 0: they start them together
        HEADS   2: the warpgroups of a block take 64 rows of two heads of a group; 1: 128 rows of one head
    """
    begin()
    t = thread()
    lane = t & 31
    group = shift_right(t, 7)
    tile = blocks_y() - 1 - block_y()
    first_row = tile * (128 // HEADS)
    first = load_int(args.cache.positions + 4 * first_row)
    last = load_int(args.cache.positions + 4 * (args.rows - 1))
    if last > first + (128 // HEADS - 1):
        last = first + (128 // HEADS - 1)
    at = shift_right(add_words(window_start(first, args.scores.window), 0), 6)  # pages, in 32 bits
    end = add_words(shift_right(last, 6), 1)
    if HEADS == 2:
        head = add_words(2 * block_x(), group)  # in 32 bits, as other numbers that are needed to the end
    else:
        head = add_words(block_x(), 0)
        first_row = first_row + 64 * group
        first = first + 64 * group
    kv_head = div_u32(head, GROUP)
    own = 16 * (shift_right(t, 5) & 3)  # the first of the warp's rows
    lowest = add_words(first, own)
    own_row = add_words(first_row, own + shift_right(lane, 2))
    block_table = block_table_of(args.cache, 0)

    tiles = (shared() + 1023) & -1024
    row = div_u32(t, HD // 8)
    piece = t - row * (HD // 8)
    to = tiles + (shift_right(piece, 3) * 8192 + 128 * row + 16 * ((piece & 7) ^ (row & 7)))
    # A thread's first piece of the head's part of page 0, and the bytes from a page to the next.
    part = 16 * t if KV == 16 else 0
    keys = head_in_page(args.cache.keys, 0, kv_head, args.kv_heads) + part
    values = head_in_page(args.cache.values, 0, kv_head, args.kv_heads) + part
    page_bytes = add_words(head_in_page(0, 1, 0, args.kv_heads), 0)
    page = load_int(block_table + 4 * at)
    ahead = page  # the page to fetch next
    if add_words(at, 1) < end:
        ahead = load_int(block_table + 4 * (at + 1))
    fetch(to, row, piece, multiply_add_wide(page, page_bytes, keys))
    if STAGES > 2:
        fetch(values_at(to, 0), row, piece, multiply_add_wide(page, page_bytes, values))
    commit_copies()
    if STAGES > 2:
        if add_words(at, 1) < end:
            fetch(keys_at(to, 1), row, piece, multiply_add_wide(ahead, page_bytes, keys))
            fetch(values_at(to, 1), row, piece, multiply_add_wide(ahead, page_bytes, values))
        commit_copies()
        if add_words(at, 2) < end:
            ahead = load_int(block_table + 4 * (at + 2))

    # Queries stay in registers, or where heads are too large for that in shared memory, 64 rows a warpgroup.
    query = registers((HD // 64 if HD <= 128 else 1, 16), 0)
    queries = tiles + (4 * 128 * HD + 128 * HD * group)
    for r in static(2):
        line = own_row + 8 * r
        if line >= args.rows:
            line = args.rows - 1
        source = args.q.address + line * args.q.stride + 4 * (head * HD + 2 * (lane & 3))
        place = queries + (128 * (own + shift_right(lane, 2) + 8 * r) + 4 * (lane & 3))
        for k in static(HD // 8):
            a, b = load_float2(source + 32 * k)
            word = pack_f16(a * args.scores.scale, b * args.scores.scale)
            if HD <= 128:
                query[k // 8, 2 * (k % 8) + r] = word
            else:
                store_shared_int(
                    place + (8192 * (k // 8) + 16 * ((k % 8) ^ (shift_right(lane, 2) & 7))), word
                )

    best = registers(2, NO_MAXIMUM)
    total = registers(2, 0.0)
    shrink = registers(2)
    acc = registers(HD // 2, 0.0)
    score = registers((8, 4))
    p = registers(16)
    if STAGES > 2:
        wait_copies_all_but_1()
    else:
        wait_copies()
    fence_async_proxy()
    barrier()
    if HD <= 128:
        score[()] = wgmma_product_64(*query[0], tiles)
        if HD == 128:
            score[()] = wgmma_64(*score[()], *query[1], tiles + 8192)
    else:
        score[()] = wgmma_shared_product_64(queries, tiles)
        for i in static(1, HD // 64):
            score[()] = wgmma_shared_64(*score[()], queries + 8192 * i, tiles + 8192 * i)
    if TURNS:
        wait_copies()
        fence_async_proxy()
        if group == 1 and add_words(at, 1) < end:
            pass_turn(1)
    if STAGES > 2:
        if add_words(at, 2) < end:
            fetch(keys_at(to, 2), row, piece, multiply_add_wide(ahead, page_bytes, keys))
            fetch(values_at(to, 2), row, piece, multiply_add_wide(ahead, page_bytes, values))
        commit_copies()
        if add_words(at, 3) < end:
            ahead = load_int(block_table + 4 * (at + 3))
    else:
        fetch(values_at(to, 0), row, piece, multiply_add_wide(page, page_bytes, values))
        if add_words(at, 1) < end:
            fetch(keys_at(to, 1), row, piece, multiply_add_wide(ahead, page_bytes, keys))
        commit_copies()
        page = ahead
        if add_words(at, 2) < end:
            ahead = load_int(block_table + 4 * (at + 2))
    score[()] = wgmma_result_64(*score[()])
    score[()] = masked(*score[()], args.scores, at, lowest, last)
    score[()], best[()], total[()], shrink[()] = probabilities(*score[()], *best[()], *total[()])
    p[()] = packed(*score[()])
    held = add_words(0, 0)  # the stage whose values are next
    while add_words(at, 1) < end:
        at = add_words(at, 1)
        values_tile = values_at(tiles, held)
        held = next_stage(held)
        keys_tile = keys_at(tiles, held)
        if TURNS:
            wait_for_turn(1 + group)
        else:
            if STAGES > 2:
                wait_copies_all_but_1()
            else:
                wait_copies()
            fence_async_proxy()
            barrier()
        if HD <= 128:
            score[()] = wgmma_product_64(*query[0], keys_tile)
            if HD == 128:
                score[()] = wgmma_64(*score[()], *query[1], keys_tile + 8192)
                acc[()] = wgmma_turned_128(*acc[()], *p[()], values_tile)
            else:
                acc[()] = wgmma_turned_64(*acc[()], *p[()], values_tile)
        else:
            score[()] = wgmma_shared_product_64(queries, keys_tile)
            for k in static(1, HD // 64):
                score[()] = wgmma_shared_64(*score[()], queries + 8192 * k, keys_tile + 8192 * k)
            acc[()] = wgmma_turned_256(*acc[()], *p[()], values_tile)
        if TURNS:
            wait_copies()  # for the next page
            fence_async_proxy()
            if group == 0 or add_words(at, 1) < end:
                pass_turn(2 - group)
        if STAGES > 2:
            # No warpgroup multiplies values of the third page before this one any more.
            if add_words(at, 2) < end:
                after = next_stage(next_stage(held))
                fetch(keys_at(to, after), row, piece, multiply_add_wide(ahead, page_bytes, keys))
                fetch(values_at(to, after), row, piece, multiply_add_wide(ahead, page_bytes, values))
            commit_copies()
            if add_words(at, 3) < end:
                ahead = load_int(block_table + 4 * (at + 3))
        else:
            # Nor keys of the page before this one, or values of the one before that.
            fetch(values_at(to, held), row, piece, multiply_add_wide(page, page_bytes, values))
            if add_words(at, 1) < end:
                fetch(keys_at(to, 1 - held), row, piece, multiply_add_wide(ahead, page_bytes, keys))
            commit_copies()
            page = ahead
            if add_words(at, 2) < end:
                ahead = load_int(block_table + 4 * (at + 2))
        score[()] = wgmma_early_result_64(*score[()])
        score[()] = masked(*score[()], args.scores, at, lowest, last)
        score[()], best[()], total[()], shrink[()] = probabilities(*score[()], *best[()], *total[()])
        if HD == 256:
            acc[()] = wgmma_late_result_256(*acc[()], total[0] + total[1])
        elif HD == 128:
            acc[()] = wgmma_late_result_128(*acc[()], total[0] + total[1])
        else:
            acc[()] = wgmma_late_result_64(*acc[()], total[0] + total[1])
        p[()] = packed(*score[()])
        if shrink[0] + shrink[1] < 2.0:
            for n in static(HD // 2):
                acc[n] = acc[n] * shrink[(n // 2) % 2]
    values_tile = values_at(tiles, held)
    if STAGES == 2:
        wait_copies()
        fence_async_proxy()
        barrier()
    if HD == 256:
        acc[()] = wgmma_turned_256(*acc[()], *p[()], values_tile)
        acc[()] = wgmma_result_256(*acc[()])
    elif HD == 128:
        acc[()] = wgmma_turned_128(*acc[()], *p[()], values_tile)
        acc[()] = wgmma_result_128(*acc[()])
    else:
        acc[()] = wgmma_turned_64(*acc[()], *p[()], values_tile)
        acc[()] = wgmma_result_64(*acc[()])
    for r in static(2):
        total[r] = quad_sum(total[r])
        line = own_row + 8 * r
        if SINKS:
            sink = load_constant(args.scores.sinks + 4 * head)
            highest = maximum(best[r], sink)
            shrunk = exp2(best[r] - highest)
            inverse = div_near(shrunk, total[r] * shrunk + exp2(sink - highest))
        else:
            inverse = div_near(1.0, total[r])
        if HALVES:
            # Column 4s + j + 2k of 16 becomes 8j + 2s + k: columns 2t and 2t + 1 of 8, which lane t of four
            # has, become t and 8 + t. So lanes exchange one of them, and each stores two neighbours.
            odd = lane & 1
            target = args.halves.address + line * args.halves.stride
            target = target + 2 * (head * HD + (lane & 2) + 8 * odd)
            for n in static(HD // 8):
                kept, given = acc[4 * n + 2 * r] * inverse, acc[4 * n + 2 * r + 1] * inverse
                if odd:
                    kept, given = given, kept
                given = shuffle_xor(given, 1)
                if odd:
                    kept, given = given, kept
                if line < args.rows:
                    store_int(target + 32 * (n // 2) + 8 * (n % 2), pack_f16(kept, given))
        elif line < args.rows:
            target = args.out.address + line * args.out.stride + 4 * (head * HD + 2 * (lane & 3))
            for n in static(HD // 8):
                for i in static(2):
                    store_float(target + 32 * n + 4 * i, acc[4 * n + 2 * r + i] * inverse)
