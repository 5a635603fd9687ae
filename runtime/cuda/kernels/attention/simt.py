"""Split-KV attention of single rows on CUDA cores: any head size, any type of the cache.

`decode.py`, `prefill.py` and `mla.py` do the same on tensor cores, for the shapes that they take.

Dao et al. 2022, "FlashAttention"; Dao et al. 2023, "Flash-Decoding for long-context inference".
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import registers, static
from ...ptx import (
    block_x,
    block_y,
    block_z,
    blocks_y,
    div_u32,
    exp2,
    load_float,
    load_float4,
    load_int,
    maximum,
    shared,
    shift_right,
    shuffle_xor,
    store_shared,
    thread,
)
from ..common.common import begin, tanh
from .cache import PagedCache, block_table_of, eight_floats, head_in_page, load_eight, page_of
from .scores import MASKED, NO_MAXIMUM, ScoreArguments, window_start
from .split_kv_merge import SplitOutput, merge_splits

G = HD = DP = VD = VP = LANES = VEC = U = WARPS = CHUNKS = PAGE = MIN_SPLIT = SOFTCAP = SINKS = 0
EMIT = LATENT = LANE_BITS = BOTH_WAYS = WINDOW = 0


class SimtAttentionArguments(KernelArguments):
    """What `simt_attention` takes."""

    q: Region  # float32 [rows, heads · HD]
    cache: PagedCache
    scores: ScoreArguments
    output: SplitOutput
    kv_heads: int
    ends: int = 0  # int32 [rows]: with BOTH_WAYS the length of each row's sequence


def simt_attention(args: SimtAttentionArguments) -> None:
    """out = softmax(scores) v, float32 [rows, heads · VD].

    Grid: (kv_heads · CHUNKS, most splits of a context, rows), of 32 · WARPS threads. A row's context is cut
    into splits, one for each block; `merge_splits` merges the results of warps and blocks. A block takes G
    query heads of one key-value head, so that each load of the cache serves G heads.

    A token's key is spread over LANES lanes, VEC times 8 dimensions in each, so that a warp takes 32 / LANES
    tokens side by side; it loads U of these groups of tokens before it uses the first. Each lane keeps an
    online softmax of its own over the tokens that it takes; lanes are merged at the end.

    Constants besides those of `cache.py` and `scores.py`:
        G           query heads of a block
        HD, VD, VP  dimensions of a key, of a value, and of a value padded to a multiple of 8
        LANES       lanes that share a token; LANE_BITS is its log2
        VEC         vectors of 8 dimensions in a lane
        U           tokens that a lane has in flight
        WARPS       of a block
        CHUNKS      blocks that share a key-value head
        MIN_SPLIT   the fewest tokens of a split
        EMIT        1: the result is also written in 8 bits
        LATENT      1: values are the first VD dimensions of the keys
        BOTH_WAYS   1: a row sees its whole sequence, or with a window as many tokens behind it as in front
    """
    begin()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    dim_lane = lane & (LANES - 1)
    token_lane = div_u32(lane, LANES)
    row = block_z()
    position = load_int(args.cache.positions + 4 * row)
    block_table = block_table_of(args.cache, row)
    low = window_start(position, args.scores.window)
    behind = position + 1
    if BOTH_WAYS:
        behind = load_int(args.ends + 4 * row)
        if WINDOW:
            if behind > position + args.scores.window:
                behind = position + args.scores.window
    count = behind - low
    split = div_u32(count + blocks_y() - 1, blocks_y())
    split = div_u32(split + MIN_SPLIT - 1, MIN_SPLIT) * MIN_SPLIT
    splits = div_u32(count + split - 1, split)
    if block_y() >= splits:
        return
    first = low + block_y() * split
    end = first + split
    if end > behind:
        end = behind
    head = block_x() * G
    kv_head = div_u32(block_x(), CHUNKS)

    query = registers((G, VEC, 8), 0.0)
    offset = registers(VEC)
    for v in static(VEC):
        dim = 8 * (dim_lane + v * LANES)
        offset[v] = 0
        if dim < DP:
            offset[v] = dim
            for g in static(G):
                at = args.q.address + row * args.q.stride + 4 * ((head + g) * HD + dim)
                if HD == DP:
                    x = registers(8)
                    x[0], x[1], x[2], x[3] = load_float4(at)
                    x[4], x[5], x[6], x[7] = load_float4(at + 16)
                    for j in static(8):
                        query[g, v, j] = args.scores.scale * x[j]
                else:
                    for j in static(8):
                        if dim + j < HD:
                            query[g, v, j] = args.scores.scale * load_float(at + 4 * j)
    best = registers(G, NO_MAXIMUM)
    total = registers(G, 0.0)
    acc = registers((G, VEC, 8), 0.0)
    for start in range(first + warp * (32 // LANES) * U, end, WARPS * (32 // LANES) * U):
        key = registers((U, VEC, 8))
        value = registers((U, VEC, 8))
        for u in static(U):
            at = start + u * (32 // LANES) + token_lane
            if at >= end:
                at = end - 1
            page = page_of(block_table, at)
            slot = at & ((1 << PAGE) - 1)
            part = head_in_page(args.cache.keys, page, kv_head, args.kv_heads)
            for v in static(VEC):
                key[u, v] = load_eight(part, slot, offset[v])
            if not LATENT:
                part = head_in_page(args.cache.values, page, kv_head, args.kv_heads)
                for v in static(VEC):
                    value[u, v] = load_eight(part, slot, offset[v])
        score = registers((U, G), 0.0)
        for u in static(U):
            for v in static(VEC):
                f = registers(8)
                f[()] = eight_floats(*key[u, v])
                for g in static(G):
                    for j in static(8):
                        score[u, g] = score[u, g] + query[g, v, j] * f[j]
        for u in static(U):
            for g in static(G):
                for b in static(LANE_BITS):
                    score[u, g] = score[u, g] + shuffle_xor(score[u, g], 1 << b)
                if SOFTCAP:
                    score[u, g] = args.scores.softcap * tanh(score[u, g])
                if start + u * (32 // LANES) + token_lane >= end:
                    score[u, g] = MASKED
        for g in static(G):
            highest = best[g]
            for u in static(U):
                highest = maximum(highest, score[u, g])
            shrink = exp2(best[g] - highest)
            best[g] = highest
            total[g] = total[g] * shrink
            for u in static(U):
                score[u, g] = exp2(score[u, g] - highest)
                total[g] = total[g] + score[u, g]
            for v in static(VEC):
                for j in static(8):
                    acc[g, v, j] = acc[g, v, j] * shrink
        for u in static(U):
            for v in static(VEC):
                f = registers(8)
                if LATENT:
                    f[()] = eight_floats(*key[u, v])
                else:
                    f[()] = eight_floats(*value[u, v])
                for g in static(G):
                    for j in static(8):
                        acc[g, v, j] = acc[g, v, j] + score[u, g] * f[j]

    # Merge the lanes that took different tokens, then leave the results of the warp for `merge_splits`.
    for b in static(LANE_BITS, 5):
        for g in static(G):
            their_best = shuffle_xor(best[g], 1 << b)
            highest = maximum(best[g], their_best)
            own = exp2(best[g] - highest)
            others = exp2(their_best - highest)
            best[g] = highest
            total[g] = total[g] * own + shuffle_xor(total[g], 1 << b) * others
            for v in static(VEC):
                for j in static(8):
                    acc[g, v, j] = acc[g, v, j] * own + shuffle_xor(acc[g, v, j], 1 << b) * others
    if token_lane == 0:
        for g in static(G):
            to = shared() + 4 * (warp * G + g) * (VP + 2)
            if dim_lane == 0:
                store_shared(to + 4 * VP, best[g])
                store_shared(to + 4 * VP + 4, total[g])
            for v in static(VEC):
                dim = 8 * (dim_lane + v * LANES)
                if dim < VP:
                    for j in static(8):
                        store_shared(to + 4 * (dim + j), acc[g, v, j])
    of_head = 4 * (VP + 2)
    merge_splits(row, head, block_y(), splits, args.scores.sinks, args.output, G * of_head, of_head)
