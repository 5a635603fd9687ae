"""Device functions of multi-head latent attention (`mla.py`): which rows and heads a block has, and its tiles
in shared memory."""

from __future__ import annotations

from ...compile.stage import device, static
from ...ptx import copy_async, div_u32, ldmatrix, store_shared_int4, thread
from .cache import head_in_page, load_eight
from .tile import store_halves, swizzled

HD = DP = KV = TILE = WARPS = SWIZZLE = PREFILL = 0  # constants: see `mla.mla_attention`


@device
def row_of(row, head, heads):
    """The step's row of a head; with PREFILL heads are counted through all rows."""
    if PREFILL:
        row = div_u32(head, heads)
    return row


@device
def head_of(head, heads):
    """The number of a head in its row."""
    if PREFILL:
        head = head - div_u32(head, heads) * heads
    return head


@device
def fetch_tile(stage, keys, page, tile, position):
    """Start copying the keys of a tile to shared memory, by all warps, as float16; zeros behind `position`.

    `keys` is the pool of pages, `page` the one that holds the tile.
    """
    keys = head_in_page(keys, page, 0, 1)
    lane = thread() & 31
    for u in static(TILE // (4 * WARPS)):  # 8 lanes take a row
        row = 4 * WARPS * u + div_u32(thread(), 8)
        slot = TILE * (tile & (64 // TILE - 1)) + row
        to = stage + swizzled(row, lane & 7)
        source = keys + 2 * (slot * DP + 8 * (lane & 7))
        inside = 16
        if TILE * tile + row > position:
            inside = 0
        for j in static((HD + 63) // 64):
            if HD >= 64 * j + 64 or 64 * j + 8 * (lane & 7) < HD:
                if KV == 16:
                    copy_async(to + 128 * j, source + 128 * j, inside)
                elif inside > 0:
                    store_halves(to + 128 * j, *load_eight(keys, slot, 64 * j + 8 * (lane & 7)))
                else:
                    store_shared_int4(to + 128 * j, 0, 0, 0, 0)


@device
def swizzled_probabilities(head, piece):
    """The offset in bytes of the probabilities of 8 tokens, a 16-byte piece of the row of a head."""
    return 2 * TILE * head + 16 * (piece ^ ((head >> (64 // TILE - 1)) & (TILE // 8 - 1)))


@device
def load_query(queries, k):
    """An mma fragment: dimensions 16k … 16k + 15 of a warp's 16 queries, float16.

    `queries` is the address of the row of a tile that this lane gives to `ldmatrix`.
    """
    lane = thread() & 31
    return ldmatrix(queries + 16 * ((2 * k + (lane >> 4)) ^ (lane & SWIZZLE)))
