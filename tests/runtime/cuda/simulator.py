"""Runs a kernel in Python, thread by thread: what it computes can be tested where there is no card.

Threads are greenlets. Instructions of one thread do what their body in `ptx/` says; those that several
threads take part in are here: a thread waits in them until the others of its warp, of its four warps, or of
its block or cluster have come as far. Clusters run one after the other. Addresses are those of NumPy arrays,
so a wild one ends the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import product
from threading import Lock
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from kukri.runtime.cuda.compile.stage import constants_for, stage
from kukri.runtime.cuda.ptx import Instruction

_BLOCK = 1024  # the most threads of a block
# Python 3.11 counts the depth of syntax trees once for all threads, so that two threads that read sources at
# a time may get a SystemError (python/cpython issue 106905).
_STAGING = Lock()


class _Thread(greenlet):
    number: int
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    shared: int
    cluster: list[int]  # the shared memory of the blocks of its cluster


def run(
    kernel: Callable[..., None],
    constants: Mapping[str, Any],
    grid: tuple[int, ...],
    threads: int,
    arguments: Iterable[Any],
    shared_bytes: int = 0,
    cluster: int = 1,
) -> None:
    """Launch a kernel with its parameters or its argument record; arrays stand for their addresses.

    `cluster` consecutive blocks of grid x run together.
    """
    with _STAGING:
        staged = _staged(kernel, tuple(sorted(constants.items())))
    values = [_value(a) for a in arguments]
    grid = (*grid, 1, 1)[:3]
    assert grid[0] % cluster == 0
    for z, y, x in product(range(grid[2]), range(grid[1]), range(0, grid[0], cluster)):
        blocks = [(x + i, y, z) for i in range(cluster)]
        _run_blocks(staged, values, blocks, grid, threads, shared_bytes)


def _value(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data
    return np.float32(argument) if isinstance(argument, float) else int(argument)


@cache
def _staged(function: Callable[..., Any], constants: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return stage(function, dict(constants), _resolve)


def _resolve(found: Any, constants: Mapping[str, Any]) -> Any:
    if isinstance(found, str) and found == "float32":
        return np.float32
    if isinstance(found, Instruction):
        return _TOGETHER.get(found.name, found.meaning)
    if getattr(found, "on_device", False):
        return _staged(found, tuple(sorted(constants_for(found, constants).items())))
    return found


def _run_blocks(
    staged: Callable[..., Any],
    values: list[Any],
    blocks: list[tuple[int, int, int]],
    grid: tuple[int, ...],
    threads: int,
    shared_bytes: int,
) -> None:
    """Run the blocks of a cluster; thread i of block b has the number b · 1024 + i among all threads."""
    # NaN: nobody may read what was not written
    memory = [np.full(shared_bytes + 1040, 0xFF, np.uint8) for _ in blocks]
    # The same place in each block, which is no better aligned than a kernel may expect.
    shared = [-(-each.ctypes.data // 1024) * 1024 + 16 for each in memory]
    here = getcurrent()
    alive: dict[int, _Thread] = {}
    for b, block in enumerate(blocks):
        for i in range(threads):
            thread = _Thread(staged, here)
            thread.number, thread.block, thread.grid = i, block, grid
            thread.shared, thread.cluster = shared[b], shared
            alive[_BLOCK * b + i] = thread
    waiting: dict[int, tuple[str, tuple[Any, ...]]] = {}
    results: dict[int, Any] = dict.fromkeys(alive)
    started: set[int] = set()
    passed: Counter[tuple[int, int]] = Counter()
    while alive:
        for i in [i for i in alive if i not in waiting]:
            request = alive[i].switch(results[i]) if i in started else alive[i].switch(*values)
            started.add(i)
            if alive[i].dead:
                del alive[i]
            else:
                waiting[i] = request
        results = _answer(waiting, alive, passed)
        assert results or not alive, f"threads wait for each other: {waiting}"
        for i in results:
            del waiting[i]


def _answer(
    waiting: dict[int, tuple[str, tuple[Any, ...]]],
    alive: dict[int, _Thread],
    passed: Counter[tuple[int, int]],
) -> dict[int, Any]:
    """What those threads get that wait for nobody else any more.

    `passed` are the threads that have called `pass_turn`, of each block and barrier.
    """
    results: dict[int, Any] = {}
    if waiting and len(waiting) == len(alive) and {n for n, _ in waiting.values()} == {"cluster_barrier"}:
        return dict.fromkeys(waiting)
    for block in {i // _BLOCK for i in waiting}:
        threads = [i for i in alive if i // _BLOCK == block]
        if all(i in waiting and waiting[i][0] == "barrier" for i in threads):
            results |= dict.fromkeys(threads)
    for i, (name, operands) in waiting.items():
        if name == "pass_turn":
            passed[i // _BLOCK, operands[0]] += 1
            results[i] = None
    for block, n in list(passed):
        waiters = [i for i, w in waiting.items() if i // _BLOCK == block and w == ("wait_for_turn", (n,))]
        assert passed[block, n] <= 128
        if passed[block, n] == len(waiters) == 128:
            results |= dict.fromkeys(waiters)
            del passed[block, n]
    for first in sorted({i // 128 * 128 for i in waiting}):
        threads = [i for i in range(first, first + 128) if i in waiting]
        names = {waiting[i][0] for i in threads}
        if len(threads) == 128 and len(names) == 1 and names <= {*_GROUP}:
            answers = _GROUP[names.pop()]([waiting[i][1] for i in threads])
            results |= dict(zip(threads, answers, strict=True))
    for warp in sorted({i // 32 for i in waiting}):
        lanes = [i for i in range(32 * warp, 32 * warp + 32) if i in waiting]
        names = {waiting[i][0] for i in lanes}
        if len(lanes) == 32 and len(names) == 1 and names <= {*_WARP}:
            answers = _WARP[names.pop()]([waiting[i][1] for i in lanes])
            results |= dict(zip(lanes, answers, strict=True))
    return results


def _together(name: str) -> Callable[..., Any]:
    return lambda *operands: getcurrent().parent.switch((name, operands))


def _shuffle_xor(operands: list[Any]) -> list[Any]:
    return [operands[i ^ int(mask)][0] for i, (_, mask) in enumerate(operands)]


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
    words = (
        np.array([[int(v) for v in o[:6]] for o in operands], np.int64).astype(np.uint32).astype(np.uint32)
    )
    halves = words.view(np.float16).reshape(32, 6, 2).astype(np.float32)
    c = np.array([[float(v) for v in o[6:]] for o in operands], np.float32)
    a, b, out = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32), np.zeros((16, 8), np.float32)
    for lane in range(32):
        g, t = divmod(lane, 4)
        for i, (row, column) in enumerate(((g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8))):
            a[row, column : column + 2] = halves[lane, i]
        for i, row in enumerate((2 * t, 2 * t + 8)):
            b[row : row + 2, g] = halves[lane, 4 + i]
        out[g, 2 * t : 2 * t + 2], out[g + 8, 2 * t : 2 * t + 2] = c[lane, :2], c[lane, 2:]
    out += a @ b
    return [
        (*out[lane // 4, 2 * (lane % 4) :][:2], *out[lane // 4 + 8, 2 * (lane % 4) :][:2])
        for lane in range(32)
    ]


def _mma_bytes(operands: list[Any]) -> list[Any]:
    """A 16 × 16 h and B 16 h × 8 of signed bytes, h = 1 or 2 by the number of operands."""
    words = np.array([[int(v) for v in o[:-4]] for o in operands], np.int64).astype(np.uint32)
    data, halves = words.view(np.int8).reshape(32, -1, 4).astype(np.int32), words.shape[1] // 3
    a, b, out = np.zeros((16, 16 * halves), int), np.zeros((16 * halves, 8), int), np.zeros((16, 8), int)
    for lane in range(32):
        g, t = divmod(lane, 4)
        for h in range(halves):
            k = 16 * h + 4 * t
            a[g, k : k + 4], a[g + 8, k : k + 4] = data[lane, 2 * h], data[lane, 2 * h + 1]
            b[k : k + 4, g] = data[lane, 2 * halves + h]
        c = [int(v) for v in operands[lane][-4:]]
        out[g, 2 * t : 2 * t + 2], out[g + 8, 2 * t : 2 * t + 2] = c[:2], c[2:]
    out += a @ b
    return [
        tuple(int(v) for g in (lane // 4, lane // 4 + 8) for v in out[g, 2 * (lane % 4) :][:2])
        for lane in range(32)
    ]


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
    words = np.array([[int(v) for v in o[-17:-1]] for o in operands], np.int64).astype(np.uint32)
    # [warp, g, t, 16 columns, which 8 of them, which row, 2] to [warp, row, g, 16 columns, 8 of them, t, 2]
    a = words.view(np.float16).reshape(4, 8, 4, 4, 2, 2, 2).transpose(0, 5, 1, 3, 4, 2, 6)
    product = a.astype(np.float32).reshape(64, 64) @ b.astype(np.float32)
    c = np.array([[float(v) for v in o[:-17]] for o in operands], np.float32)
    # [warp, row, g, 8 of B, t, 2] to [warp, g, t, 8 of B, row, 2]
    c += product.reshape(4, 2, 8, b.shape[1] // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(128, -1)
    return [tuple(line) for line in c]


_WARP = {
    "warp_barrier": lambda operands: [None] * len(operands),
    "shuffle_xor": _shuffle_xor,
    "shuffle_xor_long": _shuffle_xor,
    "shuffle": _shuffle,
    "any_above": lambda operands: [int(any(a > b for a, b in operands))] * 32,
    "warp_max_u32": lambda operands: [max(o[0] & 0xFFFFFFFF for o in operands)] * 32,
    "warp_sum_s32": lambda operands: [sum(o[0] for o in operands)] * 32,
    "ldmatrix": _load_matrices,
    "ldmatrix_transposed": _load_matrices_turned,
    "mma_f16": _mma_halves,
    "mma_s8": _mma_bytes,
    "mma_s8_k16": _mma_bytes,
}

_BLOCKS = "barrier", "cluster_barrier", "wait_for_turn", "pass_turn"

_GROUP = {
    "wgmma": _group_products,
    "wgmma_product_64": _group_products_alone,
    "wgmma_turned": _group_products_turned,
    "wgmma_shared_64": _group_products_shared,
    "wgmma_shared_product_64": _group_products_shared,
}

_TOGETHER: dict[str, Callable[..., Any]] = {
    **{name: _together(name) for name in (*_BLOCKS, *_GROUP, *_WARP)},
    "thread": lambda: getcurrent().number,
    "block_x": lambda: getcurrent().block[0],
    "block_y": lambda: getcurrent().block[1],
    "block_z": lambda: getcurrent().block[2],
    "blocks_x": lambda: getcurrent().grid[0],
    "blocks_y": lambda: getcurrent().grid[1],
    "shared": lambda: getcurrent().shared,
    "shared_of_block": lambda a, rank: a - getcurrent().shared + getcurrent().cluster[rank],
    "wait_for_grid": lambda: None,
    "launch_dependents": lambda: None,
    "fence": lambda: None,
    "fence_system": lambda: None,
    "commit_copies": lambda: None,
    "wait_copies": lambda: None,
    "wait_copies_all_but_1": lambda: None,
    "wait_copies_all_but_2": lambda: None,
    "wait_copies_all_but_3": lambda: None,
    "wait_copies_all_but_4": lambda: None,
    "wait_products": lambda: None,
    "wgmma_wait_all_but_1": lambda: None,
    "fence_async_proxy": lambda: None,
}
