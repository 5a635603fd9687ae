"""Tensor cores; who holds which elements is drawn in the PTX ISA, "Matrix Fragments"."""

from __future__ import annotations

from .instruction import instruction


@instruction("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];", "rrrr", "r", ordered=True)
def load_matrices(address: int) -> tuple[int, ...]:
    """Four 8 × 8 matrices of halves: lane 8m + i gives the shared address of row i of matrix m; lane l gets,
    of each matrix, elements 2(l % 4) and the next of row l / 4."""


@instruction(
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];", "rrrr", "r", ordered=True
)
def load_matrices_turned(address: int) -> tuple[int, ...]:
    """The same of the transposed matrices."""


@instruction(
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, "
    "{$10, $11, $12, $13};",
    "ffff",
    "rrrrrrffff",
    ordered=True,
)
def mma_halves(
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
def mma_bytes(
    a0: int, a1: int, a2: int, a3: int, b0: int, b1: int, c0: int, c1: int, c2: int, c3: int
) -> tuple[int, ...]:
    """C + A · B of a warp: A 16 × 32 and B 32 × 8 of signed bytes, C 16 × 8 of int32. With g = lane / 4 and
    t = lane % 4: a0 is A[g, 4t …], a1 A[g + 8, 4t …], a2 A[g, 4t + 16 …], a3 A[g + 8, 4t + 16 …]; b0 is
    B[4t …, g], b1 B[4t + 16 …, g]; C as in `mma_halves`."""


@instruction(
    "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {$0, $1, $2, $3}, {$4, $5}, {$6}, {$7, $8, $9, $10};",
    "rrrr",
    "rrrrrrr",
    ordered=True,
)
def mma_bytes_16(a0: int, a1: int, b0: int, c0: int, c1: int, c2: int, c3: int) -> tuple[int, ...]:
    """The same of A 16 × 16 and B 16 × 8: a0 is A[g, 4t …], a1 A[g + 8, 4t …], b0 B[4t …, g]."""
