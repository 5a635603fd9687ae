"""Instructions by which threads, blocks, clusters and cards find and wait for each other."""

from __future__ import annotations

import numpy as np

from kukri.runtime.cuda.compile.stage import registers, static
from kukri.runtime.cuda.ptx import (
    atomic_add,
    barrier,
    block_x,
    block_y,
    block_z,
    blocks_x,
    blocks_y,
    cluster_barrier,
    cycles,
    fence,
    fence_system,
    load_acquire,
    load_cluster4,
    load_flagged,
    load_float,
    load_float4,
    load_shared_int,
    pass_turn,
    shared,
    shared_of_block,
    shift_right,
    store_flagged,
    store_float,
    store_float4,
    store_int,
    store_release,
    store_shared,
    store_shared_int,
    thread,
    wait_for_turn,
)

from .launching import Launch


def places(out, counter):
    """Where a thread is, and how many came before its block. Grid: (3, 2, 2), of 64 threads."""
    block = (block_z() * blocks_y() + block_y()) * blocks_x() + block_x()
    if thread() == 0:
        atomic_add(counter, block)
        fence()
    store_int(out + 4 * (64 * block + thread()), 1000 * block + thread())


def check_places(launch: Launch) -> None:
    out, counter = np.zeros((12, 64), np.int32), np.array([5], np.int32)
    launch(places, (3, 2, 2), 64, [out, counter], 0)
    np.testing.assert_array_equal(out, 1000 * np.arange(12)[:, None] + np.arange(64))
    assert counter[0] == 5 + sum(range(12))


def turns(out):
    """Halves of a block in turn: a number, of which each half makes the next. Of 256 threads."""
    t = thread()
    half = shift_right(t, 7)
    here = shared() + 4 * (t & 127)
    if half == 0:
        store_shared_int(here, t)
    else:
        pass_turn(1)
    for i in range(3):
        wait_for_turn(1 + half)
        value = 3 * load_shared_int(here) + half
        store_shared_int(here, value)
        store_int(out + 4 * (256 * i + t), value)
        if half == 0 or i < 2:
            pass_turn(2 - half)


def check_turns(launch: Launch) -> None:
    out = np.zeros((6, 128), np.int32)
    launch(turns, (1,), 256, [out], 512)
    expected = np.arange(128)
    for i in range(6):
        expected = 3 * expected + i % 2
        np.testing.assert_array_equal(out[i], expected)


def neighbours(source, out):
    """Four floats of the same thread of the next block of a cluster of three. Of 32 threads."""
    t = thread()
    own = block_x() * 32 + t
    f = registers(4)
    f[()] = load_float4(source + 16 * own)
    for i in static(4):
        store_shared(shared() + 16 * t + 4 * i, f[i])
    cluster_barrier()
    following = block_x() + 1
    if following == 3:
        following = 0
    f[()] = load_cluster4(shared_of_block(shared() + 16 * t, following))
    store_float4(out + 16 * own, *f[()])
    cluster_barrier()


def check_neighbours(launch: Launch) -> None:
    source = np.random.default_rng(9).standard_normal((3, 32, 4)).astype(np.float32)
    out = np.zeros_like(source)
    launch(neighbours, (3,), 32, [source, out], 512, {}, 3)
    np.testing.assert_array_equal(out, source[[1, 2, 0]])


def flagged(values, room, flags, out):
    """What cards send each other: through `room` to the next thread but one. Of 2 threads."""
    t = thread()
    store_flagged(room + 8 * (t ^ 1), load_float(values + 4 * t), 7 + t)
    fence_system()
    store_release(flags + 4 * (t ^ 1), 5)
    until = cycles() + 1000
    while load_acquire(flags + 4 * (t ^ 1)) != 5 or cycles() < until:
        fence()
    barrier()
    value, flag = load_flagged(room + 8 * t)
    store_float(out + 8 * t, value)
    store_int(out + 8 * t + 4, flag)


def check_flagged(launch: Launch) -> None:
    values, room, flags = np.array([1.5, -np.inf], np.float32), np.zeros(2, np.uint64), np.zeros(2, np.int32)
    out = np.zeros((2, 2), np.int32)
    launch(flagged, (1,), 2, [values, room, flags, out], 0)
    np.testing.assert_array_equal(out[:, 0].view(np.float32), values[::-1])
    np.testing.assert_array_equal(out[:, 1], [8, 7])
    np.testing.assert_array_equal(flags, 5)
