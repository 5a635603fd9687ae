"""LLVM IR that reads vectors of keys and values from the KV cache, for each cache type.

`KEYS` and `VALUES` map a cache type to (bytes, read). `read(builder, at, stride)` emits the loads of one
iteration of a product loop (STEPS steps of WIDTH vectors) and returns the vectors, step by step, and the
address of the next iteration. `stride` is the distance in bytes from one row of memory to the next; an
iteration reads `bytes` bytes in all. Vectors are F32 for float types, else I32 with pairs of int16. On arm64
codes stay int8, and the two steps of an iteration are one: a lane has four of them (`dot16.digits`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ....quant.jit.levels import ARM64, LANES
from ....quant.jit.llvm_ir import (
    F32V,
    FLOAT,
    HALF,
    I8,
    I8V,
    I16,
    I32_,
    I64,
    beside,
    load,
    vector_of,
)
from .dot16 import bytes_as_pairs, nibbles_as_pairs, signed_halves

WIDTH = 2  # vectors of a step
STEPS = 2  # steps of an iteration


def _floats(half: bool) -> Any:
    """F32 or F16 (`half`): the vectors of a step are neighbours, the steps are rows of memory."""
    size = 2 if half else 4

    def read(builder: Any, at: Any, stride: Any) -> tuple[list, Any]:
        vectors = []
        for row in (at, builder.add(at, stride)):
            for i in range(WIDTH):
                where = beside(builder, row, size * LANES * i)
                v = load(builder, where, ir.VectorType(HALF if half else FLOAT, LANES), size)
                vectors.append(builder.fpext(v, F32V) if half else v)
        return vectors, _advance(builder, at, stride, 2)

    return STEPS * WIDTH * LANES * size, read


def _bytes(builder: Any, at: Any, stride: Any) -> tuple[list, Any]:
    """Q8_0: the vectors of a step are neighbours, the steps are rows of memory."""
    vectors = [
        bytes_as_pairs(builder, beside(builder, row, 2 * LANES * i))
        for row in (at, builder.add(at, stride))
        for i in range(WIDTH)
    ]
    return vectors, _advance(builder, at, stride, 2)


def _nibbles(builder: Any, at: Any, stride: Any) -> tuple[list, Any]:
    """Q4_0 values: the low and the high nibbles of the same bytes are the two vectors of a step."""
    vectors = [v for row in (at, builder.add(at, stride)) for v in nibbles_as_pairs(builder, row)]
    return vectors, _advance(builder, at, stride, 2)


def _nibble_steps(builder: Any, at: Any, stride: Any) -> tuple[list, Any]:
    """Q4_0 keys: the low and the high nibbles of the same bytes belong to two steps."""
    first, second = (nibbles_as_pairs(builder, beside(builder, at, 2 * LANES * i)) for i in range(WIDTH))
    return [first[0], second[0], first[1], second[1]], _advance(builder, at, stride, 1)


def _advance(builder: Any, at: Any, stride: Any, n: int) -> Any:
    """The address `n` rows of memory further on."""
    return builder.add(at, builder.mul(stride, ir.Constant(I64, n)))


def _fours(builder: Any, first: Any, second: Any) -> list:
    """Vectors with four int8 a lane, two from `first` and two from `second`; zip1 and, for 16 bytes, zip2."""
    pairs = ir.VectorType(I16, first.type.count // 2)
    lanes = [i + n * pairs.count for i in range(pairs.count) for n in (0, 1)]
    first, second = (builder.bitcast(v, pairs) for v in (first, second))
    runs = [vector_of(ir.VectorType(I32_, 8), lanes[at : at + 8]) for at in range(0, len(lanes), 8)]
    return [builder.bitcast(builder.shuffle_vector(first, second, run), I8V) for run in runs]


def _bytes_by_fours(builder: Any, at: Any, stride: Any) -> tuple[list, Any]:
    """`_bytes` for digits."""
    rows = [load(builder, row, I8V, 1) for row in (at, builder.add(at, stride))]
    return _fours(builder, *rows), _advance(builder, at, stride, 2)


def _nibbles_by_fours(builder: Any, at: Any, stride: Any) -> tuple[list, Any]:
    """`_nibbles` for digits."""
    rows = [load(builder, row, ir.VectorType(I8, 8), 1) for row in (at, builder.add(at, stride))]
    return signed_halves(builder, *_fours(builder, *rows)), _advance(builder, at, stride, 2)


def _nibble_steps_by_fours(builder: Any, at: Any, stride: Any) -> tuple[list, Any]:
    """`_nibble_steps` for digits."""
    nibbles = signed_halves(builder, load(builder, at, I8V, 1))
    return _fours(builder, *nibbles), _advance(builder, at, stride, 1)


_PAIRS = STEPS * WIDTH * LANES * 2
KEYS = {
    "F32": _floats(False),
    "F16": _floats(True),
    "Q8_0": (_PAIRS, _bytes_by_fours if ARM64 else _bytes),
    "Q4_0": (_PAIRS // 2, _nibble_steps_by_fours if ARM64 else _nibble_steps),
}
VALUES = KEYS | {"Q4_0": (_PAIRS // 2, _nibbles_by_fours if ARM64 else _nibbles)}
