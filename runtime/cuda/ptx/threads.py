"""Indices of threads and blocks, and instructions that synchronise or exchange data between threads."""

from __future__ import annotations

import ctypes

from .instruction import instruction


@instruction("mov.u32 $0, %tid.x;", "r", "")
def thread() -> int:
    """The thread's index in its block."""


@instruction("mov.u32 $0, %ctaid.x;", "r", "")
def block_x() -> int:
    """The block's index in the grid, x."""


@instruction("mov.u32 $0, %ctaid.y;", "r", "")
def block_y() -> int:
    """The block's index in the grid, y."""


@instruction("mov.u32 $0, %ctaid.z;", "r", "")
def block_z() -> int:
    """The block's index in the grid, z."""


@instruction("mov.u32 $0, %nctaid.x;", "r", "")
def blocks_x() -> int:
    """The size of the grid, x."""


@instruction("mov.u32 $0, %nctaid.y;", "r", "")
def blocks_y() -> int:
    """The size of the grid, y."""


# Other threads


@instruction("bar.sync 0;", "", "", ordered=True)
def barrier() -> None:
    """Wait for all threads of the block; their earlier writes are visible afterwards."""


@instruction("bar.sync $0, 256;", "", "r", ordered=True)
def wait_for_turn(n: int) -> None:
    """Wait at barrier n (1 … 15) with 127 other threads until 128 threads have called `pass_turn(n)`; their
    earlier writes are visible afterwards."""


@instruction("bar.arrive $0, 256;", "", "r", ordered=True)
def pass_turn(n: int) -> None:
    """Let 128 threads go that wait, or will, in `wait_for_turn(n)`."""


@instruction("bar.warp.sync 0xffffffff;", "", "", ordered=True)
def warp_barrier() -> None:
    """Wait for all threads of the warp. The compiler does not move earlier loads behind it."""


@instruction(
    "{ .reg .pred p; setp.gt.f32 p, $1, $2; vote.sync.any.pred p, p, 0xffffffff; selp.b32 $0, 1, 0, p; }",
    "r",
    "ff",
    ordered=True,
)
def any_above(a: float, b: float) -> int:
    """1 if a > b in any thread of the warp, otherwise 0."""


@instruction("shfl.sync.bfly.b32 $0, $1, $2, 31, 0xffffffff;", "f", "fr", ordered=True)
def shuffle_xor(value: float, mask: int) -> float:
    """The float32 of the lane whose number is this lane's xor `mask`."""


@instruction(
    "{ .reg .b32 low, high; mov.b64 {low, high}, $1; "
    "shfl.sync.bfly.b32 low, low, $2, 31, 0xffffffff; shfl.sync.bfly.b32 high, high, $2, 31, 0xffffffff; "
    "mov.b64 $0, {low, high}; }",
    "l",
    "lr",
    ordered=True,
)
def shuffle_xor_long(value: int, mask: int) -> int:
    """`shuffle_xor` of a 64-bit integer."""


@instruction("shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;", "f", "fr", ordered=True)
def shuffle(value: float, lane: int) -> float:
    """The float32 of `lane`."""


@instruction("redux.sync.max.u32 $0, $1, 0xffffffff;", "r", "r", ordered=True)
def warp_max_u32(value: int) -> int:
    """The largest of the unsigned words of a warp, in every lane."""


@instruction("redux.sync.add.s32 $0, $1, 0xffffffff;", "r", "r", ordered=True)
def warp_sum_s32(value: int) -> int:
    """The sum of the words of a warp, in every lane."""


@instruction("griddepcontrol.wait;", "", "", ordered=True)
def wait_for_grid() -> None:
    """Wait until the previous launch has ended and its writes are visible (`griddepcontrol.wait`, sm_90)."""


@instruction("griddepcontrol.launch_dependents;", "", "", ordered=True)
def launch_dependents() -> None:
    """Allow the next launch to start blocks on free multiprocessors (sm_90)."""


@instruction("fence.acq_rel.gpu;", "", "", ordered=True)
def fence() -> None:
    """Make this thread's earlier writes visible to the whole GPU before its later accesses."""


@instruction("atom.global.add.u32 $0, [$1], $2;", "r", "lr", ordered=True)
def atomic_add(address: int, n: int) -> int:
    """Add to a word in global memory; returns the previous value."""
    before = ctypes.c_int32.from_address(address).value
    ctypes.c_int32.from_address(address).value = before + n
    return before
