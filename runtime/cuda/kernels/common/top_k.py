"""Selects the K largest logits of each row, in descending order.

A first launch selects the top K of parts of a row, a second one the top K of these. A logit and its id form
one 64-bit key, so that all keys are different: the high word is the float32, mapped to an integer of the same
order, the low word is the inverted id, so that the lowest id comes first among equal logits. NaN is the
largest.

A warp keeps its K largest keys sorted in registers, key 32r + lane in register r. It sorts the next K keys
with a bitonic network and merges: the larger of each key and its opposite in the other sequence are the K
largest of both, and a bitonic sequence (Batcher 1968, "Sorting networks and their applications").
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
)
from .common import begin

# Constants of the launch: K = 32 · R = 2^LOG_K; WARPS = 2^LOG_WARPS. FROM_LOGITS: the source are logits, else
# the sorted keys of the first launch, K of each block. FINAL: K ids and K logits are written, else keys.
K = R = WARPS = FROM_LOGITS = FINAL = 1
LOG_K = LOG_WARPS = PDL = 0
LOWEST_KEY = -(1 << 63)  # a key below all others
IDS = 1 << 32


@device
def sort_key(value, i):
    """The key of logit `value` with id i."""
    bits = as_int(value)
    if value != value:
        order = 0x7FFFFFFF
    elif bits >= 0:
        order = bits
    elif bits == -0x80000000:  # -0 equals 0
        order = 0
    else:
        order = bits_xor(bits, 0x7FFFFFFF)
    return order * IDS + (IDS - 1 - i)


@device
def load_key(source, i, n):
    """Key i of the n of a row; LOWEST_KEY from n on."""
    key = LOWEST_KEY
    if i < n:
        if FROM_LOGITS:
            key = sort_key(load_float(source + 4 * i), i)
        else:
            key = load_long(source + 8 * i)
    return key


@device
def store_key(out, i, key):
    """Store a key at index i of the result, or with FINAL its id and its logit."""
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
    """The larger (or smaller, if not `larger`) of this lane's key and that of lane xor `stride`."""
    other = shuffle_xor_long(key, stride)
    if (other > key) == larger:
        key = other
    return key


@device
def bitonic_sort(keys: registers(R), lane):
    """Sort K keys, descending, with a bitonic network."""
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
    """The K largest keys of two sequences, sorted; `keys` is descending and `others` ascending."""
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
    """Select the K largest of the n logits or keys of each row that a block gets.

    Grid: (blocks, rows), blocks of WARPS warps. Shared memory: int64 [WARPS, K]. Groups of K elements are
    dealt to the warps of all blocks in turn. A row of `out` has K results for each block.
    """
    begin()
    lane = thread() & 31
    warp = shift_right(thread(), 5)
    row = source + block_y() * stride
    largest = registers(R, LOWEST_KEY)
    keys = registers(R)
    others = registers(R)
    for start in range((block_x() * WARPS + warp) * K, n, blocks_x() * WARPS * K):
        for r in static(R):
            keys[r] = load_key(row, start + 32 * r + lane, n)
        if FROM_LOGITS:
            keys[()] = bitonic_sort(*keys[()], lane)
        for r in static(R):
            others[r] = shuffle_xor_long(keys[R - 1 - r], 31)
        largest[()] = merge_sorted(*largest[()], *others[()], lane)
    for half in static(LOG_WARPS):
        for r in static(R):
            store_shared_long(shared() + 8 * (warp * K + 32 * r + lane), largest[r])
        barrier()
        if warp < WARPS >> (half + 1):
            for r in static(R):
                at = (warp + (WARPS >> (half + 1))) * K + K - 1 - 32 * r - lane
                others[r] = load_shared_long(shared() + 8 * at)
            largest[()] = merge_sorted(*largest[()], *others[()], lane)
        barrier()
    if warp == 0:
        for r in static(R):
            store_key(out + block_y() * out_stride + 8 * K * block_x(), 32 * r + lane, largest[r])


@device
def larger_key(key, other):
    """The larger of two keys."""
    if other > key:
        key = other
    return key


def top_1(source, stride, n, out, out_stride):
    """`top_k` for K = 1, in which each thread keeps a maximum.

    Grid: (blocks, rows), blocks of WARPS warps. Shared memory: int64 [WARPS].
    """
    begin()
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
