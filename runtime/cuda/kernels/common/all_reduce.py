"""Sums over several cards, which read and write each other's memory: see `ops.AllReduce`.

Every card sums in the order of the cards, or one card sums for all, so that all have the same bits. A sum has
a number, one more than that of the sum before it on all cards. A card that has waited too long for another
goes on with wrong sums, and says so: its word `errors` and the host's `report` are 1 from then on, and later
sums hardly wait.
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
    atomic_add,
    barrier,
    block_x,
    block_y,
    blocks_x,
    fence_system,
    launch_dependents,
    load_acquire,
    load_constant,
    load_flagged,
    load_float,
    load_float4,
    load_int,
    load_long,
    shift_right,
    store_float,
    store_float4,
    store_int,
    store_release,
    thread,
    wait_for_grid,
)
from .common import store_quantized, warp_sum
from .patience import patience_ends
from .sums import SumArguments, begin_sum, send

# Constants of the launch. CARDS: their number. ROWS: rows of the room for values of a card. EMIT: 2 if the
# result is multiplied by the weight of the next RMSNorm and quantised, else 0. SHARED: the cards are one
# card, in a test, so that the next launch must not take multiprocessors while this one waits.
CARDS = ROWS = SENT = EMIT = TOKENS = SHARED = PDL = 0

SOON = 1 << 22  # cycles, some milliseconds, after which a thread that waits for another card asks for errors
PATIENCE = 1 << 34  # cycles, some ten seconds, after which it gives up
FLAG_BYTES = 128  # from one flag to the next: a line of the cache


@device
def wait_for_flag(address, number, errors, report):
    """Wait until a flag has the number of this sum."""
    found = load_acquire(address)
    until = 0
    while found != number:
        found = load_acquire(address)
        if found != number:
            until = patience_ends(until, SOON, PATIENCE, errors, report)
            if until == -1:
                found = number


class FewRowsArguments(KernelArguments):
    """Arguments of `all_reduce_few`. x is float32 [rows, width]. `codes` has the layout of `store_quantized`,
    `norm_weight` is float32 [width], `out_partials` float32 [rows, width / 32], and
    `errors` and `report` words of this card and of the host.
    """

    x: Region
    width: int
    sums: SumArguments
    errors: int
    report: int
    codes: int = 0
    norm_weight: int = 0
    out_partials: int = 0


def all_reduce_few(args: FewRowsArguments):
    """x = Σ of x over the cards, for few rows.

    Grid: (⌈width / 128⌉, rows), blocks of 128 threads: a warp takes 32 values of a row. Each thread sends its
    value to all cards, together with the number of the sum, and looks for the values that these send. With
    SENT the product in front has sent them, and they may come while it still runs. Two rooms are used in
    turn: whoever sends for sum n + 2 has the values for sum n + 1 of all cards, which have read those of sum
    n by then.
    """
    lane = thread() & 31
    i = 128 * block_x() + thread()
    sent = registers(1 + CARDS)
    sent[()] = begin_sum(args.sums)
    here = load_long(args.sums.rooms + 8 * args.sums.rank)
    here = here + 8 * (((sent[0] & 1) * CARDS * ROWS + block_y()) * args.sums.width + i)
    weight = 0.0
    if EMIT and i < args.width:
        weight = load_constant(args.norm_weight + 4 * i)
    if PDL and not SHARED:
        launch_dependents()
    total = 0.0
    at = args.x.address + block_y() * args.x.stride + 4 * i
    if PDL:
        wait_for_grid()  # with SENT, too: threads that look for values take time from the product in front
    if not SENT and i < args.width:
        send(*sent[()], block_y(), i, load_float(at), args.sums)
    if i < args.width:
        for j in static(CARDS):
            value, flag = load_flagged(here + 8 * j * ROWS * args.sums.width)
            until = 0
            while flag != sent[0]:
                value, flag = load_flagged(here + 8 * j * ROWS * args.sums.width)
                if flag != sent[0]:
                    until = patience_ends(until, SOON, PATIENCE, args.errors, args.report)
                    if until == -1:
                        flag = sent[0]
            total = total + value
        store_float(at, total)
    if EMIT and i < args.width:  # uniform in a warp, since the width is a multiple of 32
        squares = warp_sum(total * total)
        blocks = shift_right(args.width, 5)
        if lane == 0:
            store_float(args.out_partials + 4 * (block_y() * blocks + shift_right(i, 5)), squares)
        store_quantized(args.codes, blocks, block_y(), i, total * weight)
    if PDL and SHARED:
        launch_dependents()


class ManyRowsArguments(KernelArguments):
    """Arguments of `all_reduce_many`. `xs` are the addresses of x, float32 [rows, stride / 4], on all cards,
    int64 [CARDS], and `flags` those of their flags, FLAG_BYTES each: CARDS for "ready", CARDS for "done", and
    counters. `number` is the address of the number of the step's first sum, int32, and `index` what this one
    has on top of it; `errors` and `report` are words of this card and of the host.
    """

    xs: int
    stride: int
    width: int
    rows: int
    rank: int
    number: int
    index: int
    flags: int
    errors: int
    report: int


@device
def tell_and_wait(flags, own, rank, first, number, errors, report):
    """Set this card's flag on all cards, and wait for those of the others; a thread takes a card."""
    if thread() < CARDS and thread() != rank:
        fence_system()
        store_release(load_long(flags + 8 * thread()) + FLAG_BYTES * (first + rank), number)
        wait_for_flag(own + FLAG_BYTES * (first + thread()), number, errors, report)


def all_reduce_many(args: ManyRowsArguments):
    """x = Σ of x over the cards, for many rows: each card sums its share of the rows for all.

    Grid: (blocks,), blocks of 512 threads. When all cards have their x, a card reads its rows of all of them
    and writes the sums to all of them. The last block to end waits until the others have done the same.
    """
    number = load_int(args.number) + args.index
    x = registers(CARDS)
    for j in static(CARDS):
        x[j] = load_long(args.xs + 8 * j)
    own = load_long(args.flags + 8 * args.rank)
    if PDL:
        if not SHARED:
            launch_dependents()
        wait_for_grid()
    if block_x() == 0:
        tell_and_wait(args.flags, own, args.rank, 0, number, args.errors, args.report)
    elif thread() < CARDS and thread() != args.rank:
        wait_for_flag(own + FLAG_BYTES * thread(), number, args.errors, args.report)
    barrier()
    first = args.rows * args.rank // CARDS
    quads = (args.width + 3) // 4
    n = (args.rows * (args.rank + 1) // CARDS - first) * quads
    for k in range(512 * block_x() + thread(), n, 512 * blocks_x()):
        row = k // quads
        at = (first + row) * args.stride + 16 * (k - row * quads)
        v = registers((CARDS, 4))
        for j in static(CARDS):
            v[j] = load_float4(x[j] + at)
        a, b, c, d = v[0]
        for j in static(1, CARDS):
            a = a + v[j, 0]
            b = b + v[j, 1]
            c = c + v[j, 2]
            d = d + v[j, 3]
        for j in static(CARDS):
            store_float4(x[j] + at, a, b, c, d)
    fence_system()
    barrier()
    last = 0
    if thread() < CARDS:
        last = atomic_add(own + FLAG_BYTES * (2 * CARDS) + 4 * thread(), 1)
        if last == blocks_x() - 1:
            store_int(own + FLAG_BYTES * (2 * CARDS) + 4 * thread(), 0)
            if thread() != args.rank:
                fence_system()
                to = load_long(args.flags + 8 * thread())
                store_release(to + FLAG_BYTES * (CARDS + args.rank), number)
                wait_for_flag(own + FLAG_BYTES * (CARDS + thread()), number, args.errors, args.report)
