"""Kernels that do little but each PTX instruction, and what NumPy says that comes of it: a list of them all.

`check(launch)` runs them by `launch(kernel, grid, threads, arguments, shared bytes, constants, cluster)`: on
the simulator, or on a card. Arguments are numbers, and arrays that kernels read and write. Without the last
two there are neither constants nor clusters.
"""

from __future__ import annotations

from . import arithmetic, memory, order, products

CHECKS = [
    arithmetic.check_whole,
    arithmetic.check_real,
    memory.check_loads,
    order.check_places,
    memory.check_shares,
    memory.check_fetches,
    products.check_products,
    memory.check_copies,
    memory.check_longs,
    memory.check_awaits,
    memory.check_narrow,
    order.check_flagged,
    order.check_turns,
]
WARPGROUP_CHECKS = [  # for cards of compute capability 9.0
    products.check_group_products,
    products.check_chained_products,
    products.check_products_of_both,
    order.check_neighbours,
]
CHECKED = [  # the kernels
    *(arithmetic.whole, arithmetic.real),
    *(memory.loads, memory.shares, memory.fetches, memory.copies, memory.longs, memory.awaits, memory.narrow),
    *(order.places, order.flagged, order.turns, order.neighbours),
    *(products.products, products.group, products.chain, products.both),
]
