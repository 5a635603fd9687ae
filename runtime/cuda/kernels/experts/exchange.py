"""A mixture of experts that the host computes while the launches of a step wait for it."""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device
from ...ptx import (
    barrier,
    fence_system,
    launch_dependents,
    load_acquire,
    load_float,
    load_float4,
    load_int,
    store_float,
    store_float4,
    store_release,
    thread,
    wait_for_grid,
)
from ..common.patience import patience_ends

# Constants of the launch. THREADS: of a block.
THREADS = PDL = 0

SOON = 1 << 22  # cycles, some milliseconds, after which a thread that waits asks for errors
PATIENCE = 1 << 37  # cycles, a minute or more, after which it gives up: the host's process may be halted


class ExchangeArguments(KernelArguments):
    """Arguments of `exchange`. Rows on the card are x, float32 [rows, width], experts and weights, float32
    [rows, top], and out, float32 [rows, out_width]; the host has such rows in pinned memory. Widths are
    multiples of 4. An exchange has a number: `first` is the address of that of the step's first, int32, and
    `index` what this one has on top of it. `asked` and `answered` are flags in pinned memory, `errors` and
    `report` words of this card and of the host.
    """

    x: Region
    experts: Region
    weights: Region
    out: Region
    host_x: Region
    host_experts: Region
    host_weights: Region
    host_out: Region
    width: int
    top: int
    out_width: int
    first: int
    index: int
    rows: int
    asked: int
    answered: int
    errors: int
    report: int


@device
def wait_for_answer(address, number, errors, report):
    """Wait until the flag has this number or a later one. Whoever has waited too long goes on without, and
    says so: the words `errors` and `report` are 1 from then on, and later launches hardly wait."""
    found = load_acquire(address)
    until = 0
    while found < number:
        found = load_acquire(address)
        if found < number:
            until = patience_ends(until, SOON, PATIENCE, errors, report)
            if until == -1:
                found = number


@device
def copy_rows(source: Region, to: Region, rows, quads):
    """Copy so many rows of 4 · `quads` numbers."""
    for i in range(thread(), rows * quads, THREADS):
        row = i // quads
        at = 16 * (i - row * quads)
        a, b, c, d = load_float4(source.address + row * source.stride + at)
        store_float4(to.address + row * to.stride + at, a, b, c, d)


def exchange(args: ExchangeArguments):
    """Hand rows to the host, and take what it makes of them.

    Grid: (1,), a block of THREADS threads, since rows are few and a flag follows all of them.
    """
    number = load_int(args.first) + args.index
    if PDL:
        launch_dependents()
        wait_for_grid()
    copy_rows(args.x, args.host_x, args.rows, args.width // 4)
    for i in range(thread(), args.rows * args.top, THREADS):
        row = i // args.top
        at = 4 * (i - row * args.top)
        expert = load_float(args.experts.address + row * args.experts.stride + at)
        store_float(args.host_experts.address + row * args.host_experts.stride + at, expert)
        weight = load_float(args.weights.address + row * args.weights.stride + at)
        store_float(args.host_weights.address + row * args.host_weights.stride + at, weight)
    fence_system()
    barrier()
    if thread() == 0:
        fence_system()
        store_release(args.asked, number)
        wait_for_answer(args.answered, number, args.errors, args.report)
    barrier()
    copy_rows(args.host_out, args.out, args.rows, args.out_width // 4)
