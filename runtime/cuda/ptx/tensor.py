"""Tensor cores; who holds which elements is drawn in the PTX ISA, "Matrix Fragments"."""

from __future__ import annotations

from typing import Any

from .instruction import Instruction, instruction


@instruction("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];", "rrrr", "r", ordered=True)
def ldmatrix(address: int) -> tuple[int, ...]:
    """Four 8 × 8 matrices of halves: lane 8m + i gives the shared address of row i of matrix m; lane l gets,
    of each matrix, elements 2(l % 4) and the next of row l / 4."""


@instruction(
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];", "rrrr", "r", ordered=True
)
def ldmatrix_transposed(address: int) -> tuple[int, ...]:
    """The same of the transposed matrices."""


@instruction(
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, "
    "{$10, $11, $12, $13};",
    "ffff",
    "rrrrrrffff",
    ordered=True,
)
def mma_f16(
    a0: int, a1: int, a2: int, a3: int, b0: int, b1: int, c0: float, c1: float, c2: float, c3: float
) -> tuple[float, ...]:
    """C + A · B of a warp: A 16 × 16 and B 16 × 8 of halves, C 16 × 8 of float32. With g = lane / 4 and
    t = lane % 4: a0 is A[g, 2t …], a1 A[g + 8, 2t …], a2 A[g, 2t + 8 …], a3 A[g + 8, 2t + 8 …]; b0 is
    B[2t …, g], b1 B[2t + 8 …, g]; c0, c1 are C[g, 2t …], c2, c3 C[g + 8, 2t …]."""


@instruction(
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, "
    "{$10, $11, $12, $13};",
    "rrrr",
    "rrrrrrrrrr",
    ordered=True,
)
def mma_s8(
    a0: int, a1: int, a2: int, a3: int, b0: int, b1: int, c0: int, c1: int, c2: int, c3: int
) -> tuple[int, ...]:
    """C + A · B of a warp: A 16 × 32 and B 32 × 8 of signed bytes, C 16 × 8 of int32. With g = lane / 4 and
    t = lane % 4: a0 is A[g, 4t …], a1 A[g + 8, 4t …], a2 A[g, 4t + 16 …], a3 A[g + 8, 4t + 16 …]; b0 is
    B[4t …, g], b1 B[4t + 16 …, g]; C as in `mma_f16`."""


@instruction(
    "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {$0, $1, $2, $3}, {$4, $5}, {$6}, {$7, $8, $9, $10};",
    "rrrr",
    "rrrrrrr",
    ordered=True,
)
def mma_s8_k16(a0: int, a1: int, b0: int, c0: int, c1: int, c2: int, c3: int) -> tuple[int, ...]:
    """The same of A 16 × 16 and B 16 × 8: a0 is A[g, 4t …], a1 A[g + 8, 4t …], b0 B[4t …, g]."""


def _group_product(rows: int) -> str:
    """PTX of four products of a warpgroup, whose accumulators are rows / 2 registers."""
    n = rows // 2
    acc = ", ".join(f"${i}" for i in range(n))
    # How B lies: rows of 128 bytes whose pieces are exchanged, eight of them in 1024 bytes.
    text = (
        f"{{ .reg .b32 s; .reg .b64 d; .reg .pred p; setp.eq.u32 p, 0, 0; and.b32 s, ${2 * n + 16}, 0x3FFFF; "
        "shr.u32 s, s, 4; cvt.u64.u32 d, s; or.b64 d, d, 0x4000004000010000; wgmma.fence.sync.aligned; "
    )
    for k in range(4):
        a = ", ".join(f"${2 * n + 4 * k + i}" for i in range(4))
        text += (
            f"wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.f16.f16 {{{acc}}}, {{{a}}}, d, p, 1, 1, 0; "
            "add.s64 d, d, 2; "
        )
    return text + "wgmma.commit_group.sync.aligned; }"


def _products(rows: int) -> Instruction:
    n = rows // 2

    @instruction(_group_product(rows), n * "f", n * "f" + 16 * "r" + "r", ordered=True, updated=n)
    def wgmma(*operands: Any) -> tuple[float, ...]:
        """C + A · B of the four warps of a warpgroup (sm_90a): A 64 × 64 of halves, of which warp w has rows
        16w …; B 64 columns of so many rows in shared memory; C 64 × rows of float32.

        Operands: c, of each 8 rows of B four as in `mma_f16`; a, of each 16 columns four as there; the
        shared address of B, a multiple of 1024: B[k, n] lies in row n of 128 bytes, whose 16-byte pieces are
        exchanged by n % 8. The products run on: neither c nor a may be used before `wait_products`.
        """

    return wgmma


wgmma_64 = _products(64)
wgmma_128 = _products(128)
wgmma_256 = _products(256)


def _finished(rows: int) -> Instruction:
    n = rows // 2

    @instruction("wgmma.wait_group.sync.aligned 0;", n * "f", n * "f", ordered=True, updated=n)
    def wgmma_result(*c: float) -> tuple[float, ...]:
        """The accumulators when all of the warpgroup's products are done."""
        return c

    return wgmma_result


wgmma_result_64 = _finished(64)
wgmma_result_128 = _finished(128)
wgmma_result_256 = _finished(256)


@instruction("wgmma.wait_group.sync.aligned 0;", "", "", ordered=True)
def wait_products() -> None:
    """Wait for all of the warpgroup's products."""


@instruction("wgmma.wait_group.sync.aligned 1;", "", "", ordered=True)
def wgmma_wait_all_but_1() -> None:
    """Wait for all of the warpgroup's products but those of the latest call."""


@instruction("fence.proxy.async.shared::cta;", "", "", ordered=True)
def fence_async_proxy() -> None:
    """What this thread wrote to shared memory is seen by products that come after the next barrier."""
