"""The K largest logits of a row, in order: blocks find those of parts of it, other blocks those of theirs.

A logit and its id are one 64-bit key, so that no two are equal: the float32's bits, turned so that they are
in order as an integer, above the bits of the id, turned so that the lowest is first among equals. NaN is
largest. In shared memory lie runs of K keys, each in order; two runs become one by taking the larger of
opposite elements, which leaves a bitonic run, and merging that (Batcher 1968, "Sorting networks and their
applications").
"""

from __future__ import annotations

from ..ptx import (
    as_int,
    barrier,
    bits_xor,
    block_x,
    block_y,
    let_next_start,
    load_float,
    shared,
    shift_right,
    thread,
    wait_for_grid,
)
from ..ptx_long import load_long, load_shared_long, store_long, store_shared_long
from ..stage import device

# Constants of the launch: the length of a run, a power of two; keys that a block takes, K times a power of
# two; threads of a block.
K, N, THREADS, PDL = 1, 2048, 256, 0
SMALLEST = -(1 << 63)  # the key of nothing
IDS = 1 << 32


@device
def key_of(value, i):
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
def order_pair(low, high, descending):
    """Exchange the keys at two places unless they are in order."""
    a = load_shared_long(shared() + 8 * low)
    b = load_shared_long(shared() + 8 * high)
    if (a < b) == descending:
        store_shared_long(shared() + 8 * low, b)
        store_shared_long(shared() + 8 * high, a)


@device
def merge_runs(size, n, whole):
    """Bitonic runs of `size` keys, n keys in all: each put in order, every second one backwards unless they
    are `whole` runs."""
    stride = shift_right(size, 1)
    while stride > 0:
        for i in range(thread(), shift_right(n, 1), THREADS):
            low = 2 * i - (i & (stride - 1))
            order_pair(low, low + stride, whole or (low & size) == 0)
        barrier()
        stride = shift_right(stride, 1)


@device
def reduce_runs():
    """From N keys in runs of K to the first run."""
    n = N
    while n > K:
        n = shift_right(n, 1)
        for i in range(thread(), n, THREADS):
            other = n + i - (i & (K - 1)) + K - 1 - (i & (K - 1))
            a = load_shared_long(shared() + 8 * i)
            b = load_shared_long(shared() + 8 * other)
            if b > a:
                store_shared_long(shared() + 8 * i, b)
        barrier()
        if K > 1:
            merge_runs(K, n, True)


@device
def store_run(out):
    for i in range(thread(), K, THREADS):
        store_long(out + 8 * i, load_shared_long(shared() + 8 * i))


def best_logits(logits, stride, n_tokens, out, out_stride):
    """The K largest of each N of the first `n_tokens` logits of a row, keys one run behind the other.

    Grid: (n_tokens / N, rows), of THREADS threads.
    """
    if PDL:
        let_next_start()
        wait_for_grid()
    first = block_x() * N
    row = logits + block_y() * stride
    for i in range(thread(), N, THREADS):
        key = SMALLEST
        if first + i < n_tokens:
            key = key_of(load_float(row + 4 * (first + i)), first + i)
        store_shared_long(shared() + 8 * i, key)
    barrier()
    size = 2
    while size <= K:
        merge_runs(size, N, size == K)
        size = 2 * size
    reduce_runs()
    store_run(out + block_y() * out_stride + 8 * K * block_x())


def best_keys(keys, stride, n_keys, out, out_stride):
    """The same of `n_keys` keys in runs. Grid: (n_keys / N, rows), of THREADS threads."""
    if PDL:
        let_next_start()
        wait_for_grid()
    first = block_x() * N
    row = keys + block_y() * stride
    for i in range(thread(), N, THREADS):
        key = SMALLEST
        if first + i < n_keys:
            key = load_long(row + 8 * (first + i))
        store_shared_long(shared() + 8 * i, key)
    barrier()
    reduce_runs()
    store_run(out + block_y() * out_stride + 8 * K * block_x())
