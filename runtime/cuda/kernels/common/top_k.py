"""The K largest logits of a row, in order: warps find those of parts of it, others those of what these found.

A logit and its id are one 64-bit key, so that no two are equal: the float32's bits, turned so that they are
in order as an integer, above the bits of the id, turned so that the lowest is first among equals. NaN is
largest.

A warp has a run of K keys in its registers, the largest first, number 32r + lane in register r. Another run
is put in order by a bitonic sort; the larger ones of opposite keys of two runs are the K largest of both, and
bitonic, and are merged (Batcher 1968, "Sorting networks and their applications").
"""

from __future__ import annotations

from ...compile.stage import device, registers, static
from ...ptx import (
    as_int,
    barrier,
    bits_xor,
    block_x,
    block_y,
    blocks_x,
    launch_dependents,
    load_float,
    load_long,
    load_shared_long,
    shared,
    shift_right,
    shuffle_xor_long,
    store_int,
    store_long,
    store_shared_long,
    thread,
    wait_for_grid,
)

# Constants of the launch: K is 32 R and 2 to the power LOG_K; WARPS is 2 to the power LOG_WARPS. FIRST: the
# source is logits, else keys, of `best_keys` in runs. LAST: K ids and K logits are written, not keys.
K = R = WARPS = FROM_LOGITS = FINAL = 1
LOG_K = LOG_WARPS = PDL = 0
LOWEST_KEY = -(1 << 63)  # the key of nothing
IDS = 1 << 32


@device
def sort_key(value, i):
    bits = as_int(value)
    if value != value:
        order = 0x7FFFFFFF
    elif bits >= 0:
        order = bits
    elif bits == -0x80000000:  # -0 is 0
        order = 0
    else:
        order = bits_xor(bits, 0x7FFFFFFF)
    return order * IDS + (IDS - 1 - i)


@device
def load_key(source, i, n):
    """Key number i of n."""
    key = LOWEST_KEY
    if i < n:
        if FROM_LOGITS:
            key = sort_key(load_float(source + 4 * i), i)
        else:
            key = load_long(source + 8 * i)
    return key


@device
def store_key(out, i, key):
    """At place i of a run: the key, or K ids and then as many logits."""
    if FINAL:
        order = key >> 32
        if order < 0:
            order = bits_xor(order, 0x7FFFFFFF)
        store_int(out + 4 * i, IDS - 1 - (key & (IDS - 1)))
        store_int(out + 4 * (K + i), order)
    else:
        store_long(out + 8 * i, key)


@device
def compare_exchange(key, stride, larger):
    """The `larger` or the smaller of this lane's key and that of the lane at distance `stride`."""
    other = shuffle_xor_long(key, stride)
    if (other > key) == larger:
        key = other
    return key


@device
def bitonic_sort(keys: registers(R), lane):
    """A run in any order, sorted: runs of 2, 4, … keys, every second one backwards but the last."""
    for i in static(1, LOG_K + 1):
        for j in static(i):
            for r in static(R):
                down = 1
                if (1 << i) < K:
                    down = 1 - (shift_right(32 * r + lane, i) & 1)
                if i - 1 - j < 5:
                    lower = 1 - (shift_right(lane, i - 1 - j) & 1)
                    keys[r] = compare_exchange(keys[r], 1 << (i - 1 - j), lower == down)
                elif (32 * r >> (i - 1 - j)) & 1 == 0 and (keys[r + (1 << (i - 1 - j)) // 32] > keys[r]) == (
                    down == 1
                ):
                    key = keys[r]
                    keys[r] = keys[r + (1 << (i - 1 - j)) // 32]
                    keys[r + (1 << (i - 1 - j)) // 32] = key
    return keys[()]


@device
def merge_sorted(keys: registers(R), others: registers(R), lane):
    """The larger keys of two runs, the second of them backwards, in order."""
    for r in static(R):
        if others[r] > keys[r]:
            keys[r] = others[r]
    for j in static(LOG_K):
        for r in static(R):
            if LOG_K - 1 - j < 5:
                lower = 1 - (shift_right(lane, LOG_K - 1 - j) & 1)
                keys[r] = compare_exchange(keys[r], 1 << (LOG_K - 1 - j), lower == 1)
            elif (32 * r >> (LOG_K - 1 - j)) & 1 == 0 and keys[r + (1 << (LOG_K - 1 - j)) // 32] > keys[r]:
                key = keys[r]
                keys[r] = keys[r + (1 << (LOG_K - 1 - j)) // 32]
                keys[r + (1 << (LOG_K - 1 - j)) // 32] = key
    return keys[()]


def top_k(source, stride, n, out, out_stride):
    """The K largest of n logits, or keys, of a row: each block's of the runs that its warps take in turn.

    Grid: (blocks, rows), of WARPS warps. A row of `out` has a run for each block.
    """
    if PDL:
        launch_dependents()
        wait_for_grid()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    row = source + block_y() * stride
    mine = registers(R, LOWEST_KEY)
    keys = registers(R)
    others = registers(R)
    for start in range((block_x() * WARPS + warp) * K, n, blocks_x() * WARPS * K):
        for r in static(R):
            keys[r] = load_key(row, start + 32 * r + lane, n)
        if FROM_LOGITS:
            keys[()] = bitonic_sort(*keys[()], lane)
        for r in static(R):
            others[r] = shuffle_xor_long(keys[R - 1 - r], 31)
        mine[()] = merge_sorted(*mine[()], *others[()], lane)
    for half in static(LOG_WARPS):
        for r in static(R):
            store_shared_long(shared() + 8 * (warp * K + 32 * r + lane), mine[r])
        barrier()
        if warp < WARPS >> (half + 1):
            for r in static(R):
                at = (warp + (WARPS >> (half + 1))) * K + K - 1 - 32 * r - lane
                others[r] = load_shared_long(shared() + 8 * at)
            mine[()] = merge_sorted(*mine[()], *others[()], lane)
        barrier()
    if warp == 0:
        for r in static(R):
            store_key(out + block_y() * out_stride + 8 * K * block_x(), 32 * r + lane, mine[r])


@device
def larger_key(key, other):
    if other > key:
        key = other
    return key


def top_1(source, stride, n, out, out_stride):
    """The same for K = 1: each thread takes its share, one value after another.

    Grid: (blocks, rows), of WARPS warps.
    """
    if PDL:
        launch_dependents()
        wait_for_grid()
    row = source + block_y() * stride
    key = LOWEST_KEY
    for i in range(block_x() * 32 * WARPS + thread(), n, blocks_x() * 32 * WARPS):
        key = larger_key(key, load_key(row, i, n))
    for j in static(5):
        key = larger_key(key, shuffle_xor_long(key, 16 >> j))
    store_shared_long(shared() + 8 * shift_right(thread(), 5), key)
    barrier()
    if thread() == 0:
        for i in range(1, WARPS):
            key = larger_key(key, load_shared_long(shared() + 8 * i))
        store_key(out + block_y() * out_stride + 8 * block_x(), 0, key)
