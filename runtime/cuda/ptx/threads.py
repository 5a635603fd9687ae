"""Which thread this is, and what it has to do with others."""

from __future__ import annotations

import ctypes

from .instruction import instruction


@instruction("mov.u32 $0, %tid.x;", "r", "")
def thread() -> int: ...


@instruction("mov.u32 $0, %ctaid.x;", "r", "")
def block_x() -> int: ...


@instruction("mov.u32 $0, %ctaid.y;", "r", "")
def block_y() -> int: ...


@instruction("mov.u32 $0, %ctaid.z;", "r", "")
def block_z() -> int: ...


@instruction("mov.u32 $0, %nctaid.x;", "r", "")
def blocks_x() -> int: ...


@instruction("mov.u32 $0, %nctaid.y;", "r", "")
def blocks_y() -> int: ...


# Other threads


@instruction("bar.sync 0;", "", "", ordered=True)
def barrier() -> None:
    """Wait for all threads of the block; what they wrote is seen after it."""


@instruction("bar.warp.sync 0xffffffff;", "", "", ordered=True)
def warp_barrier() -> None:
    """The same for the threads of the warp. Loads that stand before it are not moved behind it."""


@instruction("shfl.sync.bfly.b32 $0, $1, $2, 31, 0xffffffff;", "f", "fr", ordered=True)
def shuffle_xor(value: float, mask: int) -> float:
    """The value of the lane whose number differs by `mask`."""


@instruction(
    "{ .reg .b32 low, high; mov.b64 {low, high}, $1; "
    "shfl.sync.bfly.b32 low, low, $2, 31, 0xffffffff; shfl.sync.bfly.b32 high, high, $2, 31, 0xffffffff; "
    "mov.b64 $0, {low, high}; }",
    "l",
    "lr",
    ordered=True,
)
def shuffle_xor_long(value: int, mask: int) -> int:
    """The same of a 64-bit integer."""


@instruction("shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;", "f", "fr", ordered=True)
def shuffle(value: float, lane: int) -> float:
    """The value of `lane`."""


@instruction("griddepcontrol.wait;", "", "", ordered=True)
def wait_for_grid() -> None:
    """Wait until the launches that this one depends on are done and what they wrote is seen (sm_90)."""


@instruction("griddepcontrol.launch_dependents;", "", "", ordered=True)
def launch_dependents() -> None:
    """The next launch may start its blocks where there is room (sm_90)."""


@instruction("fence.acq_rel.gpu;", "", "", ordered=True)
def fence() -> None:
    """What this thread wrote before is seen by the whole card before what it does after."""


@instruction("atom.global.add.u32 $0, [$1], $2;", "r", "lr", ordered=True)
def atomic_add(address: int, n: int) -> int:
    """Add to a word in global memory; what it was before."""
    before = ctypes.c_int32.from_address(address).value
    ctypes.c_int32.from_address(address).value = before + n
    return before
