"""Tensor core instructions. The PTX ISA shows in "Matrix Fragments" which lane holds which elements."""

from __future__ import annotations

from typing import Any

from .instruction import Instruction, instruction


@instruction("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];", "rrrr", "r", ordered=True)
def ldmatrix(address: int) -> tuple[int, ...]:
    """Load four 8 × 8 matrices of float16. Lane 8m + i passes the shared address of row i of matrix m; lane l
    gets elements 2(l % 4) and 2(l % 4) + 1 of row l / 4 of each matrix."""


@instruction(
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];", "rrrr", "r", ordered=True
)
def ldmatrix_transposed(address: int) -> tuple[int, ...]:
    """`ldmatrix` of the transposed matrices."""


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
    """C + A · B of a warp: A 16 × 16 and B 16 × 8 of float16, C 16 × 8 of float32. With g = lane / 4 and
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
    """`mma_s8` with A 16 × 16 and B 16 × 8: a0 is A[g, 4t …], a1 A[g + 8, 4t …], b0 B[4t …, g]."""


def _wgmma_ptx(rows: int, accumulates: bool = True, turned: bool = False, both: bool = False) -> str:
    """PTX of four k-steps of wgmma with `rows` rows of B; the accumulators are rows / 2 registers.

    Unless it `accumulates`, they are no inputs. `turned`: B is stored with a row for each k. `both`: A is in
    shared memory, too.
    """
    n = rows // 2
    acc = ", ".join(f"${i}" for i in range(n))
    first = 2 * n if accumulates else n  # the number of the first operand behind C
    text = "{ .reg .b32 s; .reg .b64 d, e; .reg .pred p, q; setp.eq.u32 p, 0, 0; setp.ne.u32 q, 0, 0; "
    # Matrix descriptors: 128-byte swizzle, 1024 bytes from 8 rows to the next 8; if B is turned, 8192 bytes
    # from 64 columns to the next.
    descriptor, step = (0x4000004002000000, 128) if turned else (0x4000004000010000, 2)
    if both:
        text += _descriptor("e", first, 0x4000004000010000)
    text += _descriptor("d", first + 1 if both else first + 16, descriptor) + "wgmma.fence.sync.aligned; "
    for k in range(4):
        a = "{" + ", ".join(f"${first + 4 * k + i}" for i in range(4)) + "}"
        text += (
            f"wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.f16.f16 {{{acc}}}, {'e' if both else a}, d, "
            f"{'p' if accumulates or k else 'q'}, 1, 1, {'0, ' if both else ''}{int(turned)}; "
            f"add.s64 d, d, {step}; {'add.s64 e, e, 2; ' if both else ''}"
        )
    return text + "wgmma.commit_group.sync.aligned; }"


def _descriptor(name: str, operand: int, bits: int) -> str:
    """PTX that makes the descriptor of a matrix at the shared address that is an operand."""
    high, low = bits >> 32, bits & 0xFFFFFFFF  # no address in shared memory has more than 18 bits
    return f"shr.u32 s, ${operand}, 4; or.b32 s, s, 0x{low:X}; mov.b64 {name}, {{s, 0x{high:X}}}; "


def _wgmma(rows: int) -> Instruction:
    n = rows // 2

    @instruction(_wgmma_ptx(rows), n * "f", n * "f" + 16 * "r" + "r", ordered=True, updated=n)
    def wgmma(*operands: Any) -> tuple[float, ...]:
        """Start C + A · B of the four warps of a warpgroup (sm_90a): A 64 × 64 of float16, of which warp w
        holds rows 16w …; B 64 × rows of float16 in shared memory; C 64 × rows of float32.

        Operands: c, four registers for each 8 rows of B as in `mma_f16`; a, four for each 16 columns as
        there; the shared address of B, a multiple of 1024. B[k, n] is element k of row n of 128 bytes, whose
        16-byte part i is stored as part i ^ (n % 8). The products run asynchronously: c and a must not be
        used before `wgmma_wait_all_but_1` or the result.
        """

    return wgmma


wgmma_16 = _wgmma(16)
wgmma_32 = _wgmma(32)
wgmma_64 = _wgmma(64)
wgmma_128 = _wgmma(128)
wgmma_256 = _wgmma(256)


def _wgmma_turned(rows: int) -> Instruction:
    n = rows // 2

    @instruction(_wgmma_ptx(rows, turned=True), n * "f", n * "f" + 16 * "r" + "r", ordered=True, updated=n)
    def wgmma_turned(*operands: Any) -> tuple[float, ...]:
        """`wgmma` with a transposed B: element B[k, n] is element n % 64 of row k of 128 bytes, whose 16-byte
        part i is stored as part i ^ (k % 8); columns 64 … are 8192 bytes behind columns 0 … 63."""

    return wgmma_turned


wgmma_turned_64 = _wgmma_turned(64)
wgmma_turned_128 = _wgmma_turned(128)
wgmma_turned_256 = _wgmma_turned(256)


@instruction(_wgmma_ptx(64, accumulates=False), 32 * "f", 16 * "r" + "r", ordered=True)
def wgmma_product_64(*operands: Any) -> tuple[float, ...]:
    """`wgmma_64` without C: start A · B."""


def _wgmma_result(rows: int) -> Instruction:
    n = rows // 2

    @instruction("wgmma.wait_group.sync.aligned 0;", n * "f", n * "f", ordered=True, updated=n)
    def wgmma_result(*c: float) -> tuple[float, ...]:
        """Wait for all wgmma of the warpgroup; returns the accumulators."""
        return c

    return wgmma_result


wgmma_result_16 = _wgmma_result(16)
wgmma_result_32 = _wgmma_result(32)
wgmma_result_64 = _wgmma_result(64)
wgmma_result_128 = _wgmma_result(128)
wgmma_result_256 = _wgmma_result(256)


@instruction(_wgmma_ptx(64, both=True), 32 * "f", 32 * "f" + "rr", ordered=True, updated=32)
def wgmma_shared_64(*operands: Any) -> tuple[float, ...]:
    """`wgmma_64` with A in shared memory, at the address in front of that of B: rows as B's are stored."""


@instruction(_wgmma_ptx(64, accumulates=False, both=True), 32 * "f", "rr", ordered=True)
def wgmma_shared_product_64(a: int, b: int) -> tuple[float, ...]:
    """`wgmma_shared_64` without C: start A · B."""


def _wgmma_late_result(rows: int) -> Instruction:
    n = rows // 2
    branch = (
        f"{{ .reg .pred p; setp.lt.f32 p, ${2 * n}, 0f00000000; vote.sync.any.pred p, p, 0xffffffff; "
        "@!p bra.uni BEHIND; nanosleep.u32 20; BEHIND: wgmma.wait_group.sync.aligned 0; }"
    )

    @instruction(branch, n * "f", n * "f" + "f", ordered=True, updated=n)
    def wgmma_late_result(*operands: float) -> tuple[float, ...]:
        """`wgmma_result` that waits no sooner than the last operand, which is not negative, is computed: the
        assembler moves a wait to the front of its basic block, so this one begins with a branch."""
        return operands[:-1]

    return wgmma_late_result


wgmma_late_result_64 = _wgmma_late_result(64)
wgmma_late_result_128 = _wgmma_late_result(128)
wgmma_late_result_256 = _wgmma_late_result(256)


@instruction("wgmma.wait_group.sync.aligned 1;", 32 * "f", 32 * "f", ordered=True, updated=32)
def wgmma_early_result_64(*c: float) -> tuple[float, ...]:
    """Wait for all wgmma of the warpgroup except those of the latest call; returns accumulators of others."""
    return c


@instruction("wgmma.wait_group.sync.aligned 1;", "", "", ordered=True)
def wgmma_wait_all_but_1() -> None:
    """Wait for all wgmma of the warpgroup except those of the latest call."""


@instruction("fence.proxy.async.shared::cta;", "", "", ordered=True)
def fence_async_proxy() -> None:
    """Make this thread's writes to shared memory visible to wgmma after the next barrier."""
