"""What a product in matrix tiles is made of, and in which order a thread multiplies its parts."""

from __future__ import annotations

from typing import Any, NamedTuple

from .....quant.jit.decorators import jit
from .....quant.jit.simd.threads import atomic_add
from ...simd.amx_sizes import PAIRS


class Matrix(NamedTuple):
    """A matrix, and the rows that it is multiplied with."""

    weights: int  # address of its panels
    bias: int  # byte offset of its bias in `a.bias`
    first: int  # number of the first tile of rows
    last: int  # number behind the last one
    end_row: int  # number behind the last row, in the last tile
    busy: bool  # whether other threads may keep the core's other half busy


class Chunk(NamedTuple):
    """Groups of a pair of panels that are unpacked at a time."""

    left: int  # address of the first panel
    right: int  # address of the second one
    group: int  # number of the first group
    n_groups: int
    at: int  # address of the unpacked weights


class Block(NamedTuple):
    """A block of rows and a pair of panels whose sums are complete, and whose outputs are not written yet."""

    pair: int  # number of the pair
    tile: int  # number of the first tile of rows
    rows: int  # number of rows, 0 if there is no such block
    sums: int  # address of the sums


class Place(NamedTuple):
    """The place of a chunk in the order in which they are multiplied: PAIRS pairs meet a part of the columns
    before the next part."""

    some: int  # number of the first of these pairs
    pair: int
    chunk: int  # its number in the pair
    end: int  # number behind the last pair


@jit
def next_place(p: Place, part: int, n_chunks: int) -> Place:
    """The place behind another one; a part has `part` chunks, a pair n_chunks."""
    chunk = p.chunk + 1
    if chunk % part and chunk < n_chunks:
        return Place(p.some, p.pair, chunk, p.end)
    if p.pair + 1 < min(p.end, p.some + PAIRS):
        return Place(p.some, p.pair + 1, p.chunk // part * part, p.end)
    if chunk < n_chunks:
        return Place(p.some, p.some, chunk, p.end)
    return Place(p.some + PAIRS, p.some + PAIRS, 0, p.end)


@jit
def row_blocks(tiles: int) -> int:
    """Blocks of BLOCK_ROWS rows that so many tiles of ROWS rows make."""
    return (tiles + 1) // 2


@jit
def end_tasks(a: Any, s: Any, ticket: int, tasks: int) -> None:
    """Note that a thread drew a ticket behind the last task. The last thread sets the counter back: every
    thread draws one such ticket, and draws again only after a barrier."""
    if ticket == tasks + s.n_threads - 1:
        atomic_add(a.tickets, -ticket - 1)
