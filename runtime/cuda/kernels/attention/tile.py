"""Tiles of keys, values and queries in shared memory, as tensor cores read them.

A row of a tile holds HD float16. Rows would all begin in the same memory bank, so that the 8 rows that
`ldmatrix` reads at once would wait for each other. So the 16-byte pieces of a row are swizzled: piece p of
row r lies at p ^ (r & SWIZZLE).

Constants:
    HD       dimensions of a head, a multiple of 16
    SWIZZLE  7, or less where the number of pieces of a row has fewer factors of 2: see `lowering.swizzle`
"""

from __future__ import annotations

from ...compile.stage import device, registers
from ...ptx import pack_f16, store_shared_int4
from .cache import eight_floats

HD = SWIZZLE = 0


@device
def swizzled(row, piece):
    """The offset in bytes of a 16-byte piece of a row of a tile."""
    return 2 * HD * row + 16 * (piece ^ (row & SWIZZLE))


@device
def store_halves(to, a, b, c, d, e, f, g, h):
    """Store the 8 words of `cache.load_eight` to shared memory, as 8 float16."""
    x = registers(8)
    x[()] = eight_floats(a, b, c, d, e, f, g, h)
    store_shared_int4(
        to,
        pack_f16(x[0], x[1]),
        pack_f16(x[2], x[3]),
        pack_f16(x[4], x[5]),
        pack_f16(x[6], x[7]),
    )
