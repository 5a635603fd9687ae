"""What cards send each other for a sum of few rows: see `all_reduce.py`."""

from __future__ import annotations

from ...abi.arguments import KernelArguments
from ...compile.stage import device, registers, static
from ...ptx import load_int, load_long, store_flagged

# Constants of the launch. CARDS: their number. ROWS: rows of the room for values of a card.
CARDS = ROWS = 0


class SumArguments(KernelArguments):
    """Arguments for a sum. `number` is the address of the number of the step's first sum, int32, and `index`
    what this one has on top of it; `rank` is this card's. `rooms` are addresses, int64 [CARDS], of the cards'
    room for values, [2, CARDS, ROWS, width] of 8 bytes.
    """

    number: int = 0
    index: int = 0
    rank: int = 0
    rooms: int = 0
    width: int = 0


@device
def begin_sum(args: SumArguments):
    """The number of the sum, and where on each card the first value of this card belongs: 1 + CARDS
    registers."""
    sent = registers(1 + CARDS, 0)
    sent[0] = load_int(args.number) + args.index
    at = 8 * ((sent[0] & 1) * CARDS + args.rank) * ROWS * args.width
    for j in static(CARDS):
        sent[1 + j] = load_long(args.rooms + 8 * j) + at
    return sent[()]


@device
def send(sent: registers(1 + CARDS), row, column, value, args: SumArguments):
    """Send a value to all cards, to this one as well."""
    at = 8 * (row * args.width + column)
    for j in static(CARDS):
        store_flagged(sent[1 + j] + at, value, sent[0])
