"""What instructions do in which the threads of a warp, or of four warps, take part together.

Each is a function of the operands of its 32 or 128 threads, and has the result of each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np


def _shuffle_xor(operands: list[Any]) -> list[Any]:
    return [operands[i ^ int(mask)][0] for i, (_, mask) in enumerate(operands)]


def _butterfly(combine: Callable[..., np.ndarray], *masks: int) -> Callable[[list[Any]], list[Any]]:
    """A reduction by `shuffle_xor` with these masks, one after the other, as one instruction."""
    lanes = np.arange(32)

    def answer(operands: list[Any]) -> list[Any]:
        values = np.array([value for (value,) in operands], np.float32)
        return [*reduce(lambda v, mask: combine(v, v[lanes ^ mask]), masks, values)]

    return answer


def _shuffle(operands: list[Any]) -> list[Any]:
    return [operands[int(lane) & 31][0] for _, lane in operands]


def _matrices(operands: list[Any]) -> np.ndarray:
    """Halves [4, 8, 8] at the 32 addresses of rows."""
    import ctypes

    rows = [np.frombuffer((ctypes.c_uint16 * 8).from_address(address), np.uint16) for (address,) in operands]
    return np.array(rows, np.uint16).reshape(4, 8, 8)


def _fragments(matrices: np.ndarray) -> list[Any]:
    words = np.ascontiguousarray(matrices).view(np.int32)  # [4, 8, 4]
    return [tuple(int(words[m, lane // 4, lane % 4]) for m in range(4)) for lane in range(32)]


def _load_matrices(operands: list[Any]) -> list[Any]:
    return _fragments(_matrices(operands))


def _load_matrices_turned(operands: list[Any]) -> list[Any]:
    return _fragments(_matrices(operands).transpose(0, 2, 1))


def _mma_halves(operands: list[Any]) -> list[Any]:
    """A 16 × 16 and B 16 × 8 of float16. Lane 4 g + t has two of row g or g + 8 of A and of column g of B."""
    words = np.array([o[:6] for o in operands], np.int64).astype(np.uint32)
    halves = words.view(np.float16).astype(np.float32).reshape(8, 4, 6, 2)
    (low, low_below, high, high_below, *rows) = (halves[:, :, i].reshape(8, 8) for i in range(6))
    product = np.block([[low, high], [low_below, high_below]]) @ np.hstack(rows).T
    c = np.array([o[6:] for o in operands], np.float32)
    return [tuple(line) for line in c + _by_lane(product)]


def _by_lane(tile: np.ndarray) -> np.ndarray:
    """The four numbers of a tile [16, 8] that each lane has, as in C of an mma: [32, 4]."""
    return np.ascontiguousarray(tile.reshape(2, 8, 4, 2).transpose(1, 2, 0, 3)).reshape(32, 4)


def _mma_bytes(operands: list[Any]) -> list[Any]:
    """A 16 × 16 h and B 16 h × 8 of signed bytes, h = 1 or 2 by the number of operands."""
    words = np.array([o[:-4] for o in operands], np.int64).astype(np.uint32)
    data = words.view(np.int8).astype(np.int64).reshape(8, 4, -1, 4)
    halves = data.shape[2] // 3
    parts = [data[:, :, i].reshape(8, 16) for i in range(3 * halves)]
    above, below, rows = parts[: 2 * halves : 2], parts[1 : 2 * halves : 2], parts[2 * halves :]
    product = np.vstack([np.hstack(above), np.hstack(below)]) @ np.hstack(rows).T
    c = np.array([o[-4:] for o in operands], np.int64)
    return [tuple(line) for line in (c + _by_lane(product)).tolist()]


def _group_products(operands: list[Any]) -> list[Any]:
    """A 64 × 64 and B 64 × n, of 128 threads: see `ptx/tensor.py`."""
    rows = 2 * (len(operands[0]) - 17)
    return _add_product(operands, _swizzled_halves(operands, rows).reshape(rows, 64).T)


def _group_products_alone(operands: list[Any]) -> list[Any]:
    """The same without C, and B of 64 columns."""
    return _group_products([(0.0,) * 32 + o for o in operands])


def _group_products_turned(operands: list[Any]) -> list[Any]:
    """The same with C, and rows of B for each of 64 k."""
    n = 2 * (len(operands[0]) - 17)
    blocks = _swizzled_halves(operands, n).reshape(n // 64, 64, 64)
    return _add_product(operands, blocks.transpose(1, 0, 2).reshape(64, n))


def _group_products_shared(operands: list[Any]) -> list[Any]:
    """C, if there is one, and A · B of 64 × 64 both, of which only addresses are operands."""
    a = _swizzled_halves(operands, 64, -2).reshape(4, 2, 8, 4, 2, 4, 2).transpose(0, 2, 5, 3, 4, 1, 6)
    words = np.ascontiguousarray(a).view(np.int32).reshape(128, 16)
    whole = [(*(o[:-2] or (0.0,) * 32), *words[t].tolist(), o[-1]) for t, o in enumerate(operands)]
    return _group_products(whole)


def _swizzled_halves(operands: list[Any], rows: int, which: int = -1) -> np.ndarray:
    """Halves [rows, 8, 8] of so many rows of 128 bytes at the address that is operand number `which`."""
    import ctypes

    (address,) = {int(o[which]) for o in operands}
    assert address % 1024 == 0
    pieces = np.frombuffer((ctypes.c_uint16 * (64 * rows)).from_address(address), np.float16)
    lines = np.arange(rows)[:, None]
    return pieces.reshape(rows, 8, 8)[lines, np.arange(8) ^ lines % 8]


def _add_product(operands: list[Any], b: np.ndarray) -> list[Any]:
    """C + A · B, B of float16 [64, columns]."""
    words = np.array([o[-17:-1] for o in operands], np.int64).astype(np.uint32)
    # [warp, g, t, 16 columns, which 8 of them, which row, 2] to [warp, row, g, 16 columns, 8 of them, t, 2]
    a = words.view(np.float16).reshape(4, 8, 4, 4, 2, 2, 2).transpose(0, 5, 1, 3, 4, 2, 6)
    product = a.astype(np.float32).reshape(64, 64) @ b.astype(np.float32)
    c = np.array([o[:-17] for o in operands], np.float32)
    # [warp, row, g, 8 of B, t, 2] to [warp, g, t, 8 of B, row, 2]
    c += product.reshape(4, 2, 8, b.shape[1] // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(128, -1)
    return [tuple(line) for line in c]


WARP = {
    "warp_barrier": lambda operands: [None] * len(operands),
    "shuffle_xor": _shuffle_xor,
    "shuffle_xor_long": _shuffle_xor,
    "shuffle": _shuffle,
    "warp_sum": _butterfly(np.add, 16, 8, 4, 2, 1),
    "warp_maximum": _butterfly(np.fmax, 16, 8, 4, 2, 1),
    "quad_sum": _butterfly(np.add, 1, 2),
    "quad_maximum": _butterfly(np.fmax, 1, 2),
    "any_above": lambda operands: [int(any(a > b for a, b in operands))] * 32,
    "warp_max_u32": lambda operands: [max(o[0] & 0xFFFFFFFF for o in operands)] * 32,
    "warp_sum_s32": lambda operands: [sum(o[0] for o in operands)] * 32,
    "ldmatrix": _load_matrices,
    "ldmatrix_transposed": _load_matrices_turned,
    "mma_f16": _mma_halves,
    "mma_s8": _mma_bytes,
    "mma_s8_k16": _mma_bytes,
}

GROUP = {
    "wgmma": _group_products,
    "wgmma_product_64": _group_products_alone,
    "wgmma_turned": _group_products_turned,
    "wgmma_shared_64": _group_products_shared,
    "wgmma_shared_product_64": _group_products_shared,
}
