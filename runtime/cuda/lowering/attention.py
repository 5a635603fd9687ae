"""Launches of attention, and of what happens to queries and keys before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ... import ops
from ..compile.arguments import Region
from ..kernels.attention import decode, prefill, prepare_qk, simt
from .base import FEW, Coded, Launches, padded
from .fusing import PreparedAttend, turn_key

SPANS = 64  # blocks that share a row's context at most
SPAN = 64  # tokens that a block takes at least
PREPARE_WARPS = 4
ATTEND_WARPS = 4
# Bytes of shared memory a block, where cards have more than most.
SHARED = {(8, 0): 163 << 10, (8, 7): 163 << 10, (9, 0): 227 << 10, (10, 0): 227 << 10, (10, 3): 227 << 10}
LOG2_E = math.log2(math.e)


class AttentionLowering(Launches):
    def _angles(self, op: ops.RoPE) -> Region:
        """Cosines and sines for the step's rows, made once for all that turn alike."""
        pairs, key = len(op.inv_freq), str(hash(turn_key(op)))
        angles = self.memory.rows(f"angles {key}", self.layout.max_rows, 8 * pairs)
        if key not in self._turned:
            self._turned.add(key)
            address, stride = self.memory.vector(op.inv_freq), 0
            if op.long_inv_freq:
                region = self.memory.rows(f"frequencies {key}", self.layout.max_rows, 4 * pairs)
                self.by_length[hash(key)] = op, region
                address, stride = region.address, region.stride
            arguments = [self.inputs.positions, address, stride, pairs, float(op.attention_factor)]
            what, grid = (
                self._kernel(prepare_qk.rotations, 128),
                (-(-pairs // 128), self._n[False]),
            )
            self._emit(what, grid, [*arguments, angles.address, angles.stride])
        return angles

    def _rope(self, op: ops.RoPE) -> None:
        angles, x = self._angles(op), self._at(op.x)
        head_dim, warps = op.x.width // op.heads, PREPARE_WARPS
        what = self._kernel(
            prepare_qk.rope,
            32 * warps,
            HD=head_dim,
            WARPS=warps,
            INTERLEAVED=int(op.interleaved),
        )
        arguments = [x.address, x.stride, op.heads, op.start, len(op.inv_freq), angles.address, angles.stride]
        self._emit(what, (-(-op.heads // warps), self._n[op.x.logits_rows]), arguments, 4 * warps * head_dim)
        self._wrote(op.x)

    def _prepared_attend(self, i: int, op: PreparedAttend) -> None:
        turn = (self._angles(op.rope), op.rope) if op.rope else None
        if self._n[False] == 1 and self._suits_tensor_cores(op.attend):
            self._attend_group(i, op.attend, self._preparation(op.attend, op.q_norm, op.k_norm, turn))
            self._wrote(op.attend.q, op.attend.k)
            return
        self._into_cache(op.attend, op.attend.heads, op.q_norm, op.k_norm, turn)
        self._wrote(op.attend.q, op.attend.k)
        self._attend(i, op.attend)

    def _append(self, op: ops.Attend) -> None:
        if op.append:
            self._into_cache(op, 0, None, None, None)

    def _into_cache(
        self,
        op: ops.Attend,
        heads: int,
        q_norm: ops.RMSNorm | None,
        k_norm: ops.RMSNorm | None,
        turn: tuple[Region, ops.RoPE] | None,
    ) -> None:
        constants, arguments = self._preparation(op, q_norm, k_norm, turn)
        what = self._kernel(
            prepare_qk.prepare,
            32 * PREPARE_WARPS,
            HD=op.head_dim,
            **self._cache_constants(op),
            WARPS=PREPARE_WARPS,
            LATENT=int(op.v == op.k),
            **constants,
        )
        regions: list[int | float] = []
        for b in (op.q, op.k, op.v):
            regions += [*self._at(b)]
        angles = turn[0].stride if turn else 0
        arguments = [*regions, *arguments, angles, *self._cached(op), heads, op.kv_heads]
        stored = op.kv_heads if op.v == op.k else 2 * op.kv_heads
        grid = -(-(heads + stored) // PREPARE_WARPS), self._n[False]
        self._emit(what, grid, arguments, 4 * PREPARE_WARPS * self._padded(op))

    def _preparation(
        self,
        op: ops.Attend,
        q_norm: ops.RMSNorm | None,
        k_norm: ops.RMSNorm | None,
        turn: tuple[Region, ops.RoPE] | None,
    ) -> tuple[dict[str, int | float], list[int | float]]:
        """What happens to queries and keys before attention, as constants and arguments."""
        norms = [0 if n is None else 1 if len(n.weight) == op.head_dim else 2 for n in (q_norm, k_norm)]
        constants: dict[str, int | float] = {"Q_NORM": norms[0], "K_NORM": norms[1]}
        constants |= {"ROPE": int(turn is not None), "INVERSE_HD": 1 / op.head_dim}
        constants |= {"INTERLEAVED": int(turn is not None and turn[1].interleaved)}
        weights = [self.memory.vector(n.weight) if n else 0 for n in (q_norm, k_norm)]
        eps = next((n.eps for n in (q_norm, k_norm) if n), 1.0)
        angles = [len(turn[1].inv_freq), turn[0].address] if turn else [0, 0]
        return constants, [*weights, float(eps), *angles]

    def _padded(self, op: ops.Attend) -> int:
        return padded(op.head_dim, self.layout.cache_bits)

    def _cache_constants(self, op: ops.Attend) -> dict[str, int]:
        """What `kernels/cache.py` must know."""
        page = self.layout.page_size.bit_length() - 1
        return {"KV": self.layout.cache_bits, "DP": self._padded(op), "PAGE": page}

    def _cached(self, op: ops.Attend) -> list[int]:
        """Where kernels find the cache of an op's layer, and the step's rows in it."""
        keys, values = self.cache(op.layer, self.program.cache_layers[op.layer])
        inputs = self.inputs
        where = [keys.address, values.address, inputs.table, inputs.table_stride]
        return [*where, inputs.sequences, inputs.positions]

    def _scores(self, op: ops.Attend) -> tuple[dict[str, int], list[int | float]]:
        """What attention kernels are told first, and their constants that say so."""
        cap = op.softcap or 1.0
        scale = op.scale / cap if op.softcap else op.scale * LOG2_E
        sinks = 0 if op.sinks is None else self.memory.vector(self._log2_sinks(op))
        constants = {"SOFTCAP": int(op.softcap > 0), "SINKS": int(bool(sinks)), "WINDOW": int(op.window > 0)}
        rows = [*self._at(op.q), *self._cached(op)]
        return constants | self._cache_constants(op), [*rows, scale, cap * LOG2_E, op.window, sinks]

    def _attend(self, i: int, op: ops.Attend) -> None:
        if self._one_prompt and self._suits_tensor_cores(op):
            self._attend_prompt(op)
        elif self._suits_tensor_cores(op):
            self._attend_group(i, op)
        else:
            self._attend_plain(i, op)

    def _attend_plain(self, i: int, op: ops.Attend) -> None:
        group, dims = op.heads // op.kv_heads, self._padded(op)
        lanes = min(32, 1 << (dims // 8 - 1).bit_length())
        vectors = -(-dims // (8 * lanes))
        together = greatest_divisor(group, max(1, 4 // vectors))
        value_dims = padded(op.value_dim)
        constants: dict[str, int | float] = {
            "LATENT": int(op.v == op.k),
            "LANES": lanes,
            "LANE_BITS": lanes.bit_length() - 1,
            "VEC": vectors,
            "U": 4 if vectors == 1 and self.layout.cache_bits <= 16 else 2 if vectors <= 2 else 1,
            "SPAN": SPAN,
            "WARPS": ATTEND_WARPS,
        }
        self._in_spans(i, op, simt.attend, together, value_dims, constants, 4, 0)

    def _attend_group(
        self,
        i: int,
        op: ops.Attend,
        preparation: tuple[dict[str, int | float], list[int | float]] | None = None,
    ) -> None:
        """Up to 16 heads of a group at once; with a `preparation` also what comes before attention."""
        dims = op.head_dim
        stages = 3 if dims <= 128 else 2
        of_a_warp = stages * 64 * dims
        warps = 2 * ATTEND_WARPS if 2 * ATTEND_WARPS * of_a_warp <= self._shared_limit else ATTEND_WARPS
        together = greatest_divisor(op.heads // op.kv_heads, 16)
        shared = warps * of_a_warp
        constants: dict[str, int | float] = {"STAGES": stages, "TURN": exchanged(dims), "WARPS": warps}
        constants |= {"ALONE": int(self._n[False] == 1), "PREPARE": int(preparation is not None)}
        more: list[int | float] = [0, 0, 0, 0, 1.0, 0, 0]
        if preparation:
            constants |= preparation[0]
            more = [self._at(op.k).address, self._at(op.v).address, *preparation[1]]
            shared += 4 * (together + 2) * dims
        self._in_spans(i, op, decode.attend_group, together, dims, constants, 1, shared, more)

    def _in_spans(
        self,
        i: int,
        op: ops.Attend,
        function: Callable[..., None],
        together: int,
        value_dims: int,
        constants: dict[str, int | float],
        resident: int,
        shared: int,
        more: Sequence[int | float] = (),
    ) -> None:
        """Attention of single rows, whose contexts blocks share: `together` heads a block."""
        layout, n = self.layout, self._n[False]
        chunks = op.heads // op.kv_heads // together
        blocks = op.kv_heads * chunks
        warps = int(constants["WARPS"])
        merging = 4 * warps * together * (value_dims + 2) + 16
        shared = max(shared, merging, together * (8 * SPANS + 4 * value_dims))
        # No more than run at once: idle blocks cost time, and so does a context in pieces.
        at_once = self.device.multiprocessors * max(resident, self._shared_limit // shared)
        spans = max(1, min(SPANS, at_once // blocks) // n)
        emits = op.value_dim % 32 == 0 and n <= FEW and self._only_products(i, op.out)
        said, arguments = self._scores(op)
        constants = constants | said
        constants |= {"G": together, "HD": op.head_dim, "VD": op.value_dim, "VP": value_dims}
        constants |= {"CHUNKS": chunks, "EMIT": int(emits)}
        constants |= {"TOKENS": self._tokens(op.out) if emits else 0}
        what = replace(self._kernel(function, 32 * warps, **constants), resident=resident)
        room = op.heads * SPANS * (value_dims + 4) * 4
        partials = self.memory.rows(f"spans {op.heads} {value_dims}", 1, room).address
        counters = self.memory.rows(f"counters {blocks}", 1, 4 * layout.max_rows * blocks).address
        codes = self._codes(self._real(op.out)) if emits else 0
        arguments += [partials, counters, *self._at(op.out), codes, op.heads, op.kv_heads, *more]
        self._emit(what, (blocks, spans, n), arguments, shared)
        self._wrote(op.out)
        if emits:
            self._coded[self._real(op.out).name] = Coded(codes)

    def _suits_tensor_cores(self, op: ops.Attend) -> bool:
        halves = self.layout.cache_bits <= 16 and op.v != op.k
        fits = op.head_dim % 16 == 0 and self._padded(op) == op.head_dim <= self._most_dims
        return halves and fits and self.layout.page_size == 64

    @property
    def _shared_limit(self) -> int:
        """Bytes of shared memory that a block may ask for."""
        return SHARED.get(self.device.capability, 99 << 10)

    @property
    def _most_dims(self) -> int:
        """Of a head, for attention on tensor cores: 256 take 160 KB of shared memory."""
        return 256 if self._shared_limit >= 640 * 256 else 128

    def _attend_prompt(self, op: ops.Attend) -> None:
        n, (constants, arguments) = self._n[False], self._scores(op)
        dims = op.head_dim
        held = dims <= 128
        constants |= {
            "HD": dims,
            "GROUP": op.heads // op.kv_heads,
            "TURN": exchanged(dims),
            "HELD": int(held),
        }
        what = self._kernel(prefill.attend_prompt, 128, **constants)
        arguments += [*self._at(op.out), n, op.kv_heads]
        self._emit(what, (-(-n // 64), op.heads), arguments, (512 if held else 640) * dims)
        self._wrote(op.out)

    def _log2_sinks(self, op: ops.Attend) -> np.ndarray:
        assert op.sinks is not None
        return self._scaled_sinks.setdefault(id(op), op.sinks * np.float32(LOG2_E))


def greatest_divisor(n: int, most: int) -> int:
    """The largest divisor of n that is not above `most`."""
    return max(d for d in range(1, most + 1) if n % d == 0)


def exchanged(dims: int) -> int:
    """TURN, as kernels have it, for rows of so many halves: see `kernels/prompt_attention.py`."""
    pieces = dims // 8
    return min(8, pieces & -pieces) - 1
