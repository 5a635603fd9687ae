"""SIMD for Numba: vectors of 32-bit lanes that live in registers, and the instructions on them.

Two vector types, `F32` and `I32`, with `LANES` lanes each. A lane is a *row* of a weight matrix in the
matmul kernels: an `I32` lane holds four consecutive 8-bit weights of its row, `dot` multiplies them by four
activations that are the same for all lanes, and no sum ever crosses lanes.

The level is picked from what the CPU offers; `KUKRI_SIMD` forces a lower one:

=============  =====  =================================================
level          lanes  8-bit dot product
=============  =====  =================================================
avx512vnni     16     vpdpbusd zmm
avx512         16     vpmaddubsw + vpmaddwd zmm
avxvnni        8      vpdpbusd ymm
avx2           8      vpmaddubsw + vpmaddwd ymm
neon           4      sdot
plain          8      widening multiplications; any CPU that LLVM knows
=============  =====  =================================================

Addresses are plain int64 numbers: kernels get them from their argument records.
"""

from __future__ import annotations

import ctypes
import inspect
import operator
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_constant
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic as _typed_intrinsic
from numba.extending import lower_builtin, models, register_model, typeof_impl

intrinsic: Any = _typed_intrinsic  # its annotations describe the Python side, not the compiled calls

LEVELS = {"avx512vnni": 16, "avx512": 16, "avxvnni": 8, "avx2": 8, "neon": 4, "plain": 8}


def cpu_features() -> Any:
    """What this CPU has, by LLVM's names; for LLVM too, which would end the process over an `sdot` that the
    CPU's name does not promise and the features do not list."""
    has = llvm.get_host_cpu_features()
    if platform.machine().lower() in ("aarch64", "arm64") and "dotprod" not in has:
        if platform.system() == "Linux":  # whose list LLVM reads without this one
            getauxval = ctypes.CDLL(None).getauxval
            getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
            at_hwcap, asimddp = 16, 1 << 20
            has["dotprod"] = bool(getauxval(at_hwcap) & asimddp)
        elif platform.system() == "Darwin":  # all that Apple has made for it; LLVM reads nothing there
            has["dotprod"] = True
    return has


def supported_levels() -> list[str]:
    """The levels this CPU can run, best first."""
    has = cpu_features()
    found = []
    if platform.machine().lower() in ("x86_64", "amd64"):
        avx2 = all(has.get(f) for f in ("avx2", "fma", "f16c"))
        avx512 = avx2 and all(has.get(f) for f in ("avx512f", "avx512bw", "avx512vl", "avx512dq"))
        found += ["avx512vnni"] if avx512 and has.get("avx512vnni") else []
        found += ["avx512"] if avx512 else []
        found += ["avxvnni"] if avx2 and (has.get("avxvnni") or (avx512 and has.get("avx512vnni"))) else []
        found += ["avx2"] if avx2 else []
    elif platform.machine().lower() in ("aarch64", "arm64"):
        found += ["neon"] if has.get("dotprod") else []
    return [*found, "plain"]


def pick_level(forced: str | None) -> str:
    """The best supported level, or `forced`; ValueError if that one is unknown or not supported."""
    offered = supported_levels()
    if not forced:
        return offered[0]
    if forced not in LEVELS:
        raise ValueError(f"KUKRI_SIMD={forced!r} is none of {', '.join(LEVELS)}")
    if forced not in offered:
        raise ValueError(f"KUKRI_SIMD={forced}: this CPU offers {', '.join(offered)}")
    return forced


LEVEL = pick_level(os.environ.get("KUKRI_SIMD"))
LANES = LEVELS[LEVEL]
_config: Any = numba.config
if LEVEL == "neon" and _config.CPU_FEATURES is None:
    _config.CPU_FEATURES = cpu_features().flatten()

_I8, _I16, _I32, _I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_HALF, _FLOAT = ir.HalfType(), ir.FloatType()
_F32V, _I32V = ir.VectorType(_FLOAT, LANES), ir.VectorType(_I32, LANES)
_I8V, _I16V = ir.VectorType(_I8, 4 * LANES), ir.VectorType(_I16, 2 * LANES)


class VectorType(types.Type):
    """The Numba type of a vector of `LANES` 32-bit lanes."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"{name}x{LANES}")


class FloatVector(VectorType):
    pass


class IntVector(VectorType):
    pass


F32, I32 = FloatVector("f32"), IntVector("i32")


@register_model(FloatVector)
class _FloatModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _F32V)


@register_model(IntVector)
class _IntModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _I32V)


# --- building blocks of the definitions below ------------------------------------------------------------


def _call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Call the LLVM intrinsic `name`."""
    fnty = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, fnty, name), args)


def _constant(vector: Any, value: int) -> ir.Constant:
    return ir.Constant(vector, [ir.Constant(vector.element, value)] * vector.count)


def _splat(builder: Any, scalar: Any, vector: Any) -> Any:
    zero = ir.Constant(_I32, 0)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, zero)
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_I32, vector.count), None))


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def instruction(result: Any, *args: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: an intrinsic of fixed types; the function writes its LLVM instructions."""

    def decorate(emit: Callable[..., Any]) -> Any:
        def definition(typingctx: Any, *given: Any) -> Any:
            def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
                return emit(builder, *values)

            return signature(result, *args), codegen

        # Numba matches a call against the Python signature, which must have no *args.
        names = ["typingctx", *(f"a{i}" for i in range(len(args)))]
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        definition.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        definition.__name__ = emit.__name__
        definition.__doc__ = emit.__doc__
        return intrinsic(definition)

    return decorate


# --- memory ----------------------------------------------------------------------------------------------


@instruction(types.int32, types.int64)
def load_i32(builder: Any, address: Any) -> Any:
    """The int32 at an address."""
    return _load(builder, address, _I32, 4)


@instruction(types.float32, types.int64)
def load_f32(builder: Any, address: Any) -> Any:
    """The float32 at an address."""
    return _load(builder, address, _FLOAT, 4)


@instruction(types.none, types.int64, types.float32)
def store_f32(builder: Any, address: Any, value: Any) -> None:
    """Write a float32."""
    builder.store(value, builder.inttoptr(address, _FLOAT.as_pointer()), align=4)


@instruction(types.none, types.int64, types.int32)
def store_i32(builder: Any, address: Any, value: Any) -> None:
    """Write an int32."""
    builder.store(value, builder.inttoptr(address, _I32.as_pointer()), align=4)


@instruction(types.none, types.int64, types.int64)
def store_i64(builder: Any, address: Any, value: Any) -> None:
    """Write an int64."""
    builder.store(value, builder.inttoptr(address, _I64.as_pointer()), align=8)


@instruction(types.none, types.int64, types.float32)
def store_f16(builder: Any, address: Any, value: Any) -> None:
    """Write a float32 rounded to fp16."""
    half = builder.fptrunc(value, _HALF)
    builder.store(half, builder.inttoptr(address, _HALF.as_pointer()), align=2)


@instruction(F32, types.int64)
def loadv_f32(builder: Any, address: Any) -> Any:
    """`LANES` consecutive float32; vmovups."""
    return _load(builder, address, _F32V, 4)


@instruction(types.none, types.int64, F32)
def storev_f32(builder: Any, address: Any, value: Any) -> None:
    """Write `LANES` float32; vmovups."""
    builder.store(value, builder.inttoptr(address, _F32V.as_pointer()), align=4)


@instruction(I32, types.int64)
def loadv_i32(builder: Any, address: Any) -> Any:
    """`LANES` consecutive int32; vmovdqu."""
    return _load(builder, address, _I32V, 4)


@instruction(I32, types.int64)
def loadv_u16(builder: Any, address: Any) -> Any:
    """`LANES` consecutive uint16, widened; vpmovzxwd."""
    return builder.zext(_load(builder, address, ir.VectorType(_I16, LANES), 2), _I32V)


@instruction(I32, types.int64)
def loadv_u8(builder: Any, address: Any) -> Any:
    """`LANES` consecutive uint8, widened; vpmovzxbd."""
    return builder.zext(_load(builder, address, ir.VectorType(_I8, LANES), 1), _I32V)


@instruction(F32, types.int64)
def loadv_f16(builder: Any, address: Any) -> Any:
    """`LANES` consecutive fp16, widened; vcvtph2ps."""
    return builder.fpext(_load(builder, address, ir.VectorType(_HALF, LANES), 2), _F32V)


@instruction(F32, types.int64)
def loadv_bf16(builder: Any, address: Any) -> Any:
    """`LANES` consecutive bfloat16, widened; vpmovzxwd + vpslld."""
    wide = builder.zext(_load(builder, address, ir.VectorType(_I16, LANES), 2), _I32V)
    return builder.bitcast(builder.shl(wide, _constant(_I32V, 16)), _F32V)


@instruction(types.none, types.int64, I32)
def storev_i32(builder: Any, address: Any, value: Any) -> None:
    """Write `LANES` int32; vmovdqu."""
    builder.store(value, builder.inttoptr(address, _I32V.as_pointer()), align=4)


@instruction(types.none, types.int64, I32)
def storev_i8(builder: Any, address: Any, value: Any) -> None:
    """Write the low byte of each lane."""
    kind = ir.VectorType(_I8, LANES)
    builder.store(builder.trunc(value, kind), builder.inttoptr(address, kind.as_pointer()), align=1)


@instruction(types.none, types.int64)
def prefetch(builder: Any, address: Any) -> None:
    """Ask for the cache line at an address, which need not exist; prefetcht0."""
    pointer = builder.inttoptr(address, cgutils.voidptr_t)
    read, keep, data = (ir.Constant(_I32, i) for i in (0, 3, 1))
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, read, keep, data)


# --- arithmetic ------------------------------------------------------------------------------------------


@instruction(F32, types.float32)
def splat_f32(builder: Any, value: Any) -> Any:
    """The same float32 in every lane; vbroadcastss."""
    return _splat(builder, value, _F32V)


@instruction(I32, types.int32)
def splat_i32(builder: Any, value: Any) -> Any:
    """The same int32 in every lane; vpbroadcastd."""
    return _splat(builder, value, _I32V)


@instruction(F32, F32, F32, F32)
def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c, fused where the CPU can; vfmadd231ps."""
    return _call(builder, f"llvm.fmuladd.v{LANES}f32", _F32V, a, b, c)


@instruction(F32, F32, F32)
def maximum(builder: Any, a: Any, b: Any) -> Any:
    """The larger of two in each lane; vmaxps."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@instruction(F32, F32, F32)
def minimum(builder: Any, a: Any, b: Any) -> Any:
    """The smaller of two in each lane; vminps."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


@instruction(F32, F32)
def absolute(builder: Any, a: Any) -> Any:
    """|a|; vandps."""
    return _call(builder, f"llvm.fabs.v{LANES}f32", _F32V, a)


@instruction(F32, F32)
def round_even(builder: Any, a: Any) -> Any:
    """To the nearest integer, ties to even; vroundps."""
    return _call(builder, f"llvm.rint.v{LANES}f32", _F32V, a)


@instruction(F32, I32)
def to_f32(builder: Any, a: Any) -> Any:
    """int32 → float32; vcvtdq2ps."""
    return builder.sitofp(a, _F32V)


@instruction(I32, F32)
def to_i32(builder: Any, a: Any) -> Any:
    """float32 → int32, towards zero; vcvttps2dq."""
    return builder.fptosi(a, _I32V)


@instruction(F32, I32)
def bits_to_f32(builder: Any, a: Any) -> Any:
    """The same bits read as float32."""
    return builder.bitcast(a, _F32V)


def _halves(builder: Any, a: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Fold a vector's lanes to one by halves."""
    width = LANES
    while width > 1:
        width //= 2
        order = ir.VectorType(_I32, width)
        low = builder.shuffle_vector(a, a, ir.Constant(order, [ir.Constant(_I32, i) for i in range(width)]))
        high = builder.shuffle_vector(
            a, a, ir.Constant(order, [ir.Constant(_I32, width + i) for i in range(width)])
        )
        a = combine(low, high)
    return builder.extract_element(a, ir.Constant(_I32, 0))


@instruction(types.float32, F32)
def lane_sum(builder: Any, a: Any) -> Any:
    """The sum of all lanes."""
    return _halves(builder, a, builder.fadd)


@instruction(types.float32, F32)
def lane_max(builder: Any, a: Any) -> Any:
    """The largest lane."""
    return _halves(builder, a, lambda x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))


@instruction(types.int32, I32)
def lane_sum_i32(builder: Any, a: Any) -> Any:
    """The sum of all lanes."""
    return _halves(builder, a, builder.add)


def _operator(op: Any, kind: Any, right: Any, emit: Callable[..., Any]) -> None:
    """Give vectors a Python operator; an int on the right is a constant for all lanes."""

    class Template(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and args[0] == kind:
                if args[1] == right:
                    return signature(kind, kind, right)
                if kind == I32 and isinstance(args[1], types.Integer):
                    return signature(kind, kind, types.int32)
            return None

    infer_global(op)(Template)

    @lower_builtin(op, kind, right)
    def _vector(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return emit(builder, *values)

    if kind == I32:

        @lower_builtin(op, kind, types.int32)
        def _scalar(context: Any, builder: Any, sig: Any, values: Any) -> Any:
            return emit(builder, values[0], _splat(builder, values[1], _I32V))


_operator(operator.add, F32, F32, lambda b, x, y: b.fadd(x, y))
_operator(operator.sub, F32, F32, lambda b, x, y: b.fsub(x, y))
_operator(operator.mul, F32, F32, lambda b, x, y: b.fmul(x, y))
_operator(operator.truediv, F32, F32, lambda b, x, y: b.fdiv(x, y))
_operator(operator.add, I32, I32, lambda b, x, y: b.add(x, y))
_operator(operator.sub, I32, I32, lambda b, x, y: b.sub(x, y))
_operator(operator.mul, I32, I32, lambda b, x, y: b.mul(x, y))
_operator(operator.and_, I32, I32, lambda b, x, y: b.and_(x, y))
_operator(operator.or_, I32, I32, lambda b, x, y: b.or_(x, y))
_operator(operator.xor, I32, I32, lambda b, x, y: b.xor(x, y))
_operator(operator.lshift, I32, I32, lambda b, x, y: b.shl(x, y))
_operator(operator.rshift, I32, I32, lambda b, x, y: b.lshr(x, y))  # logical: lanes are bit fields


# --- 8-bit weights ---------------------------------------------------------------------------------------


class CodesType(types.Type):
    """The Numba type of a `Codes` constant: each constant is a type of its own."""

    def __init__(self, codes: Codes) -> None:
        super().__init__(name=f"{codes.name}({codes.limit},{codes.zero},{codes.signed})")
        self.codes = codes


@dataclass(frozen=True)
class Codes:
    """A compile-time constant: what the 8-bit codes of the block format `name` look like.

    A code stands for code - zero. It lies in 0…limit, or in -limit…limit if `signed`.
    """

    name: str
    limit: int
    zero: int = 0
    signed: bool = False


register_model(CodesType)(models.OpaqueModel)


@typeof_impl.register(Codes)
def _typeof_codes(value: Codes, context: Any) -> CodesType:
    return CodesType(value)


@lower_constant(CodesType)
def _constant_codes(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


def _broadcast4(builder: Any, address: Any, offset: int) -> Any:
    """Four activations, the same in every lane, as bytes; vpbroadcastd from memory."""
    if LEVEL == "neon":  # sdot takes a lane of a register: one load for four of them
        x = _load(builder, builder.add(address, ir.Constant(_I64, offset // 16 * 16)), _I32V, 4)
        lane = ir.Constant(ir.VectorType(_I32, LANES), [ir.Constant(_I32, offset % 16 // 4)] * LANES)
        return builder.bitcast(builder.shuffle_vector(x, x, lane), _I8V)
    at = builder.add(address, ir.Constant(_I64, offset))
    return builder.bitcast(_splat(builder, _load(builder, at, _I32, 4), _I32V), _I8V)


def _dot_vnni(builder: Any, total: Any, words: list, xs: list, codes: Codes) -> Any:
    """vpdpbusd: unsigned codes; signed ones are offset by 128, which `code_offset` tells."""
    for w, x in zip(words, xs, strict=True):
        if codes.signed:
            w = builder.xor(w, _constant(_I8V, 0x80))
        arguments = (total, builder.bitcast(w, _I32V), builder.bitcast(x, _I32V))
        total = _call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", _I32V, *arguments)
    return total


def _dot_madd(builder: Any, total: Any, words: list, xs: list, codes: Codes) -> Any:
    """vpmaddubsw into 16 bits, several summed while they cannot overflow, then vpmaddwd to 32 bits."""
    bits = 32 * LANES
    name = "llvm.x86.avx2.pmadd.ub.sw" if bits == 256 else "llvm.x86.avx512.pmaddubs.w.512"
    widen = "llvm.x86.avx2.pmadd.wd" if bits == 256 else "llvm.x86.avx512.pmaddw.d.512"
    run = max(1, 32767 // (2 * 127 * codes.limit))
    products = []
    for w, x in zip(words, xs, strict=True):
        if codes.signed:  # |w| · (x with the sign of w); -128 never meets more than 127
            negative = builder.icmp_signed("<", w, _constant(_I8V, 0))
            x = builder.select(negative, builder.neg(x), x)
            w = builder.select(negative, builder.neg(w), w)
        products.append(_call(builder, name, _I16V, w, x))
    for i in range(0, len(products), run):
        pairs = reduce(builder.add, products[i : i + run])
        total = builder.add(total, _call(builder, widen, _I32V, pairs, _constant(_I16V, 1)))
    return total


def _dot_neon(builder: Any, total: Any, words: list, xs: list, codes: Codes) -> Any:
    """sdot: codes up to 127 are the same number signed."""
    for w, x in zip(words, xs, strict=True):
        total = _call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", _I32V, total, w, x)
    return total


def _dot_plain(builder: Any, total: Any, words: list, xs: list, codes: Codes) -> Any:
    """Four widening multiplications a lane: bytes are picked by shifts of the 32-bit lanes."""

    def byte(v: Any, i: int, signed: bool) -> Any:
        v = builder.shl(builder.bitcast(v, _I32V), _constant(_I32V, 24 - 8 * i))
        return (builder.ashr if signed else builder.lshr)(v, _constant(_I32V, 24))

    for w, x in zip(words, xs, strict=True):
        for i in range(4):
            total = builder.add(total, builder.mul(byte(w, i, codes.signed), byte(x, i, True)))
    return total


_VNNI = LEVEL in ("avx512vnni", "avxvnni")
_DOTS = {
    "avx512vnni": _dot_vnni,
    "avx512": _dot_madd,
    "avxvnni": _dot_vnni,
    "avx2": _dot_madd,
    "neon": _dot_neon,
    "plain": _dot_plain,
}


@intrinsic
def dot(typingctx: Any, start: Any, words: Any, address: Any, codes: Any) -> Any:
    """start + Σ words · activations, in each lane.

    `words` is a tuple of n I32, each holding 4 codes a lane; the 4n int8 activations at `address` are shared
    by all lanes. `codes` is a `Codes` constant. Activations are in -127…127.
    """

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        total, tup, at, _ = values
        ws = [builder.bitcast(w, _I8V) for w in cgutils.unpack_tuple(builder, tup, words.count)]
        xs = [_broadcast4(builder, at, 4 * i) for i in range(len(ws))]
        return _DOTS[LEVEL](builder, total, ws, xs, codes.codes)

    return signature(I32, I32, words, types.int64, codes), codegen


@intrinsic
def code_offset(typingctx: Any, codes: Any) -> Any:
    """What `dot` counts every code too high, in every lane: Σ (code - zero) · x = dot - offset · Σ x."""
    offset = codes.codes.zero + (128 if codes.codes.signed and _VNNI else 0)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return ir.Constant(_F32V, [ir.Constant(_FLOAT, float(offset))] * LANES)

    return signature(F32, codes), codegen


@intrinsic
def lookup16(typingctx: Any, table: Any, index: Any) -> Any:
    """table[index] for every byte; `table` is a tuple of 16 ints, index bytes lie in 0…15; vpshufb."""
    if not isinstance(table, types.BaseTuple) or len(table) != 16:
        return None

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        entries = [builder.trunc(v, _I8) for v in cgutils.unpack_tuple(builder, values[0], 16)]
        where = builder.bitcast(values[1], _I8V)
        if LEVEL == "plain":
            found = _constant(_I8V, 0)
            for i, entry in enumerate(entries):
                hit = builder.icmp_unsigned("==", where, _constant(_I8V, i))
                found = builder.select(hit, _splat(builder, entry, _I8V), found)
            return builder.bitcast(found, _I32V)
        lut = ir.Constant(ir.VectorType(_I8, 16), ir.Undefined)
        for i, entry in enumerate(entries):
            lut = builder.insert_element(lut, entry, ir.Constant(_I32, i))
        if LEVEL == "neon":
            return builder.bitcast(_call(builder, "llvm.aarch64.neon.tbl1.v16i8", _I8V, lut, where), _I32V)
        order = [ir.Constant(_I32, i % 16) for i in range(4 * LANES)]
        lut = builder.shuffle_vector(lut, lut, ir.Constant(ir.VectorType(_I32, 4 * LANES), order))
        name = "llvm.x86.avx2.pshuf.b" if LANES == 8 else "llvm.x86.avx512.pshuf.b.512"
        return builder.bitcast(_call(builder, name, _I8V, lut, where), _I32V)

    return signature(I32, table, I32), codegen


# --- threads ---------------------------------------------------------------------------------------------


@instruction(types.int64, types.int64, types.int64)
def atomic_add(builder: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at an address and return what was there; lock xadd."""
    return builder.atomic_rmw("add", builder.inttoptr(address, _I64.as_pointer()), value, "seq_cst")


@instruction(types.int64, types.int64)
def atomic_load(builder: Any, address: Any) -> Any:
    """Read the int64 at an address, seeing everything written before it was stored."""
    return builder.load_atomic(builder.inttoptr(address, _I64.as_pointer()), "acquire", 8)


@instruction(types.none)
def pause(builder: Any) -> None:
    """Tell the core that this is a spin loop; pause, yield."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        _call(builder, "llvm.x86.sse2.pause", ir.VoidType())
    elif machine in ("aarch64", "arm64"):
        _call(builder, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(_I32, 1))


@instruction(types.none, types.int64, types.int64, types.int64, types.int64)
def call_kernel(builder: Any, address: Any, arguments: Any, step: Any, thread: Any) -> None:
    """Call the kernel (see `jit.Kernel`) whose machine code is at `address`."""
    fnty = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I64])
    builder.call(builder.inttoptr(address, fnty.as_pointer()), [arguments, step, thread])


@intrinsic
def as_pointer(typingctx: Any, address: Any) -> Any:
    """An address as the pointer that `numba.carray` takes."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return signature(types.voidptr, types.int64), codegen
