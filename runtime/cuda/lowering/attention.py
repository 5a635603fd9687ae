"""Launches of attention: which kernel takes an op, in what blocks, over how many splits of the context."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ... import ops
from ..abi.arguments import Region
from ..kernels.attention.decode import DecodeAttentionArguments, decode_attention
from ..kernels.attention.prefill import PrefillAttentionArguments, prefill_attention
from ..kernels.attention.prefill_sm90 import (
    WidePrefillAttentionArguments,
    prefill_attention_sm90,
    shared_bytes,
)
from ..kernels.attention.prepare_qk import QKPreparation
from ..kernels.attention.scores import ScoreArguments
from ..kernels.attention.simt import SimtAttentionArguments, simt_attention
from ..kernels.attention.split_kv_merge import SplitOutput
from ..kernels.attention.split_plan import ENTRY, THREADS, PlanArguments, plan_splits
from .base import QuantizedRows, padded_head_dim
from .fusing import PreparedAttend
from .prepare_qk import PrepareLowering, QKSteps

MAX_SPLITS = 64  # of a row's context
MIN_SPLIT = 64  # tokens
WARPS = 4  # of a block
WIDE_HEAD_DIMS = 64, 128, 256  # of heads that `prefill_sm90.py` takes
# Bytes of shared memory that a block may ask for, by compute capability; 99 KB for others.
SHARED = {(8, 0): 163 << 10, (8, 7): 163 << 10, (9, 0): 227 << 10, (10, 0): 227 << 10, (10, 3): 227 << 10}
LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class SplitBlock:
    """A block of a split-KV kernel: query heads, dimensions of a value, padded, and warps; how many blocks
    fit on a multiprocessor at least, and the bytes of shared memory that a warp has, if it is more than its
    results take."""

    heads: int
    value_dims: int
    warps: int
    resident: int = 1
    of_warp: int = 0


@dataclass(frozen=True)
class SplitPlan:
    """The launch of a split-KV kernel: grid, bytes of shared memory, constants, and where the result goes."""

    grid: tuple[int, int, int]
    shared: int
    constants: dict[str, int]
    output: SplitOutput


class AttentionLowering(PrepareLowering):
    def _prepared_attend(self, i: int, op: PreparedAttend) -> None:
        steps = QKSteps(op.q_norm, op.k_norm, op.rope)
        if self._n_rows[False] == 1 and self._suits_tensor_cores(op.attend):
            if op.rope:
                steps = replace(steps, frequencies=self._frequencies(op.rope))
            self._decode_attention(i, op.attend, steps)
            self._invalidate(op.attend.q, op.attend.k)
            return
        if op.rope:
            steps = replace(steps, angles=self._angles(op.rope))
        self._prepare_qk(op.attend, op.attend.heads, steps)
        self._invalidate(op.attend.q, op.attend.k)
        self._attend(i, op.attend)

    def _attend(self, i: int, op: ops.Attend) -> None:
        if not op.causal:
            self._simt_attention(i, op)
        elif self._one_prompt and self._suits_tensor_cores(op):
            self._prefill_attention(i, op)
        elif self._suits_tensor_cores(op):
            self._decode_attention(i, op)
        else:
            self._simt_attention(i, op)

    def _simt_attention(self, i: int, op: ops.Attend) -> None:
        """Split-KV attention on CUDA cores; a token's key is spread over just enough lanes."""
        dims, value_dims = self._padded(op), padded_head_dim(op.value_dim)
        lanes = min(32, 1 << (dims // 8 - 1).bit_length())
        vectors = -(-dims // (8 * lanes))
        heads = greatest_divisor(op.heads // op.kv_heads, max(1, 4 // vectors))
        plan = self._split_kv(i, op, SplitBlock(heads, value_dims, WARPS, resident=4))
        constants = plan.constants | {
            "LATENT": int(op.v == op.k),
            "LANES": lanes,
            "LANE_BITS": lanes.bit_length() - 1,
            "VEC": vectors,
            "U": 4 if vectors == 1 and self.capacity.cache_bits <= 16 else 2 if vectors <= 2 else 1,
            "MIN_SPLIT": MIN_SPLIT,
            "BOTH_WAYS": int(not op.causal),
        }
        arguments = SimtAttentionArguments(
            q=self._at(op.q),
            cache=self._cached(op),
            scores=self._scores(op),
            output=plan.output,
            kv_heads=op.kv_heads,
            ends=0 if op.causal else self.row_input("ends"),
        )
        what = replace(self._kernel(simt_attention, 32 * WARPS, **constants), resident=4)
        self._emit(what, plan.grid, arguments, plan.shared)
        self._wrote_split(op, plan)

    def _decode_attention(self, i: int, op: ops.Attend, steps: QKSteps | None = None) -> None:
        """Split-KV attention on tensor cores, up to 16 heads a block, after `steps` if they are given."""
        dims, n = op.head_dim, self._n_rows[False]
        heads = greatest_divisor(op.heads // op.kv_heads, self.tuning.heads if n == 1 else 16)
        warps, stages = self.tuning.split_kv(n, dims, self._shared_limit - behind_warps(heads, dims))
        constants: dict[str, int | float] = {"STAGES": stages, "SWIZZLE": swizzle(dims)}
        constants["ALONE"] = self.tuning.alone if n == 1 else 0
        constants |= {"SINGLE_ROW": int(n == 1), "PREPARE": int(steps is not None), "PLANNED": int(n > 1)}
        k = v = 0
        preparation = QKPreparation(q_norm=0, k_norm=0, eps=1.0, pairs=0, angles=0)
        if steps is not None:
            k, v = self._at(op.k).address, self._at(op.v).address
            more, preparation = self._preparation(op, steps)
            constants |= more
        plan = self._split_kv(
            i, op, SplitBlock(heads, dims, warps, of_warp=stages * 64 * dims), planned=n > 1
        )
        items = self._split_plan(op.window, warps, plan) if n > 1 else 0
        arguments = DecodeAttentionArguments(
            q=self._at(op.q),
            cache=self._cached(op),
            scores=self._scores(op),
            output=plan.output,
            kv_heads=op.kv_heads,
            k=k,
            v=v,
            preparation=preparation,
            plan=items,
        )
        what = self._kernel(decode_attention, 32 * warps, **constants, **plan.constants)
        self._emit(what, plan.grid, arguments, plan.shared)
        self._wrote_split(op, plan)

    def _split_plan(self, window: int, warps: int, plan: SplitPlan) -> int:
        """The address of the plan of a step's splits, made once a step for all layers that it suits."""
        n, items = self._n_rows[False], plan.grid[1]
        key = f"plan of {items - n} splits, {warps} warps, window {window}"
        address = self.memory.rows(key, self.capacity.max_rows + MAX_SPLITS, ENTRY).address
        if key not in self._plans_written:
            self._plans_written.add(key)
            arguments = PlanArguments(
                positions=self.inputs.positions, rows=n, window=window, budget=items - n, items=address
            )
            constants = {"WARPS": warps, "WINDOW": int(window > 0)}
            self._emit(self._kernel(plan_splits, THREADS, **constants), (1,), arguments, 32)
        return address

    def _split_kv(self, i: int, op: ops.Attend, block: SplitBlock, planned: bool = False) -> SplitPlan:
        """How many splits each row's context gets, and what follows from that.

        `planned`: grid y has the items of a plan, of which there are as many as rows and as splits that
        run at once.
        """
        n, value_dims = self._n_rows[False], block.value_dims
        chunks = op.heads // op.kv_heads // block.heads
        blocks = op.kv_heads * chunks
        of_warp = block.of_warp or 4 * block.heads * (value_dims + 2)
        merging = block.warps * of_warp + behind_warps(block.heads, value_dims)
        shared = max(merging, block.heads * (8 * MAX_SPLITS + 4 * value_dims))
        # No more blocks than run at once: a block that waits costs time, and so does each further split.
        at_once = self.device.multiprocessors * max(block.resident, self._shared_limit // shared)
        budget = max(1, min(MAX_SPLITS, at_once // blocks))
        splits, rows = (budget + n, 1) if planned else (max(1, budget // n), n)
        emits = op.value_dim % 32 == 0 and n <= self.decode_rows and self._read_only_by_matmuls(i, op.out)
        constants = self._score_constants(op)
        constants |= {"G": block.heads, "HD": op.head_dim, "VD": op.value_dim, "VP": value_dims}
        halves = Region(0, 0)
        if planned and self._emits_halves(i, op):  # values in the cache are float16, and so are means of them
            halves = self._f16_memory(op.out)[0]
        constants |= {"CHUNKS": chunks, "WARPS": block.warps, "EMIT": 2 if halves.address else int(emits)}
        constants |= {"TOKENS": self._padded_rows(op.out) if emits else 0}
        most = MAX_SPLITS + (self.capacity.max_rows if planned else 0)
        size = op.heads * most * (value_dims + 4) * 4
        counters = 4 * self.capacity.max_rows * blocks
        output = SplitOutput(
            partials=self.memory.rows(f"{most} splits {op.heads} {value_dims}", 1, size).address,
            counters=self.memory.rows(f"counters {blocks}", 1, counters).address,
            out=self._at(op.out),
            codes=self._quantized_address(self._resolve(op.out)) if emits else 0,
            heads=op.heads,
            halves=halves.address,
            half_stride=halves.stride,
        )
        return SplitPlan((blocks, splits, rows), shared, constants, output)

    def _wrote_split(self, op: ops.Attend, plan: SplitPlan) -> None:
        """The result is there, in 8 bits too if the plan says so."""
        self._invalidate(op.out)
        if plan.output.codes:
            self._quantized[self._resolve(op.out).name] = QuantizedRows(plan.output.codes)
        if plan.output.halves:
            self._f16_current[self._resolve(op.out).name] = self.memory.vector(self._ones)

    def _emits_halves(self, i: int, op: ops.Attend) -> bool:
        """Whether products of many rows are all that reads the result of attention over float16 values."""
        many = self.device.warpgroups and self._n_rows[False] > self.decode_rows
        return many and self.capacity.cache_bits == 16 and self._read_only_by_matmuls(i, op.out)

    def _prefill_attention(self, i: int, op: ops.Attend) -> None:
        if self.device.warpgroups and self.tuning.wide_attention and op.head_dim in WIDE_HEAD_DIMS:
            self._wide_prefill_attention(i, op)
            return
        n, dims = self._n_rows[False], op.head_dim
        in_registers = dims <= 128
        constants = self._score_constants(op) | {
            "HD": dims,
            "GROUP": op.heads // op.kv_heads,
            "SWIZZLE": swizzle(dims),
            "Q_IN_REGISTERS": int(in_registers),
        }
        arguments = PrefillAttentionArguments(
            q=self._at(op.q),
            cache=self._cached(op),
            scores=self._scores(op),
            out=self._at(op.out),
            rows=n,
            kv_heads=op.kv_heads,
        )
        what = self._kernel(prefill_attention, 128, **constants)
        self._emit(what, (-(-n // 64), op.heads), arguments, (512 if in_registers else 640) * dims)
        self._invalidate(op.out)

    def _wide_prefill_attention(self, i: int, op: ops.Attend) -> None:
        """Attention of one prompt with wgmma."""
        n, dims, group = self._n_rows[False], op.head_dim, op.heads // op.kv_heads
        heads = 2 if group % 2 == 0 else 1
        emits = self._emits_halves(i, op)
        constants = self._score_constants(op) | {"HD": dims, "GROUP": group, "HEADS": heads}
        stages = 5 if dims <= 128 else 2
        constants |= {"STAGES": stages, "TURNS": int(self.tuning.attention_turns and stages > 2)}
        arguments = WidePrefillAttentionArguments(
            q=self._at(op.q),
            cache=self._cached(op),
            scores=self._scores(op),
            out=self._at(op.out),
            rows=n,
            kv_heads=op.kv_heads,
            halves=self._f16_memory(op.out)[0] if emits else Region(0, 0),
        )
        what = self._kernel(prefill_attention_sm90, 256, HALVES=int(emits), **constants)
        # Two blocks have 128 registers a thread, too few for larger heads and for unpacking codes.
        what = replace(what, resident=2 if dims == 64 and self.capacity.cache_bits == 16 else 1)
        grid = op.heads // heads, -(-n // (128 // heads))
        self._emit(what, grid, arguments, shared_bytes(dims, stages))
        self._invalidate(op.out)
        if emits:
            self._f16_current[self._resolve(op.out).name] = self.memory.vector(self._ones)

    def _scores(self, op: ops.Attend) -> ScoreArguments:
        cap = op.softcap or 1.0
        return ScoreArguments(
            scale=op.scale / cap if op.softcap else op.scale * LOG2_E,
            softcap=cap * LOG2_E,
            window=op.window,
            sinks=0 if op.sinks is None else self.memory.vector(self._log2_sinks(op)),
        )

    def _score_constants(self, op: ops.Attend) -> dict[str, int]:
        """The constants of `kernels/attention/scores.py` and `cache.py`."""
        kinds = {"SOFTCAP": op.softcap > 0, "SINKS": op.sinks is not None, "WINDOW": op.window > 0}
        return {name: int(kind) for name, kind in kinds.items()} | self._cache_constants(op)

    def _suits_tensor_cores(self, op: ops.Attend) -> bool:
        """Whether `decode.py` and `prefill.py` take an op."""
        cached = self.capacity.cache_bits <= 16 and op.v != op.k
        fits = op.head_dim % 16 == 0 and self._padded(op) == op.head_dim <= self._max_head_dim
        return cached and fits and self.capacity.page_size == 64

    @property
    def _shared_limit(self) -> int:
        """Bytes of shared memory that a block may ask for."""
        return SHARED.get(self.device.capability, 99 << 10)

    @property
    def _max_head_dim(self) -> int:
        """For attention on tensor cores: heads of 256 take 160 KB of shared memory."""
        return 256 if self._shared_limit >= 640 * 256 else 128

    def _log2_sinks(self, op: ops.Attend) -> np.ndarray:
        assert op.sinks is not None
        return self._scaled_sinks.setdefault(id(op), op.sinks * np.float32(LOG2_E))


def behind_warps(heads: int, value_dims: int) -> int:
    """Bytes of shared memory that a block of a split-KV kernel needs besides those of its warps: for results,
    or what is prepared."""
    return max(4 * heads * value_dims + 16, 2 * (heads + 2) * value_dims)


def greatest_divisor(n: int, most: int) -> int:
    """The largest divisor of n that is not above `most`."""
    return max(d for d in range(1, most + 1) if n % d == 0)


def swizzle(dims: int) -> int:
    """SWIZZLE of `kernels/attention/tile.py` for rows of so many float16."""
    pieces = dims // 8
    return min(8, pieces & -pieces) - 1
