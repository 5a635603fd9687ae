"""Launches of what comes before attention: RoPE, norms of queries and keys, and writing the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from ... import ops
from ..abi.arguments import Region
from ..kernels.attention.cache import PagedCache
from ..kernels.attention.prepare_qk import PrepareArguments, QKPreparation, prepare_qk, rope, rope_angles
from .base import LaunchBuilder, padded_head_dim
from .fusing import rotation_key

WARPS = 4  # of a block


@dataclass(frozen=True)
class QKSteps:
    """The steps between the projections and attention. `angles` are those of `rope`, see `rope_angles`; of a
    step with one row its `frequencies` do."""

    q_norm: ops.RMSNorm | None = None
    k_norm: ops.RMSNorm | None = None
    rope: ops.RoPE | None = None
    angles: Region | None = None
    frequencies: Region | None = None


class PrepareLowering(LaunchBuilder):
    def _angles(self, op: ops.RoPE) -> Region:
        """Cosines and sines of the step's rows, once a step for all ops with the same frequencies."""
        pairs, key = len(op.inv_freq), str(hash(rotation_key(op)))
        angles = self.memory.rows(f"angles {key}", self.capacity.max_rows, 8 * pairs)
        if key not in self._angles_written:
            self._angles_written.add(key)
            frequencies = self._frequencies(op)
            arguments = [self.inputs.positions, *frequencies, pairs, float(op.attention_factor), *angles]
            self._emit(self._kernel(rope_angles, 128), (-(-pairs // 128), self._n_rows[False]), arguments)
        return angles

    def _frequencies(self, op: ops.RoPE) -> Region:
        """The frequencies of the step's rows; those that depend on lengths are uploaded before a step."""
        if not op.long_inv_freq:
            return Region(self.memory.vector(op.inv_freq), 0)
        key, size = str(hash(rotation_key(op))), 4 * len(op.inv_freq)
        frequencies = self.memory.rows(f"frequencies {key}", self.capacity.max_rows, size)
        self.by_length[hash(key)] = op, frequencies
        return frequencies

    def _rope(self, op: ops.RoPE) -> None:
        angles, x, head_dim = self._angles(op), self._at(op.x), op.x.width // op.heads
        what = self._kernel(rope, 32 * WARPS, HD=head_dim, WARPS=WARPS, INTERLEAVED=int(op.interleaved))
        grid = -(-op.heads // WARPS), self._n_rows[op.x.logits_rows]
        arguments = [*x, op.heads, op.start, len(op.inv_freq), *angles]
        self._emit(what, grid, arguments, 4 * WARPS * head_dim)
        self._invalidate(op.x)

    def _append(self, op: ops.Attend) -> None:
        """Write keys and values that are already normed and rotated to the cache."""
        if op.append:
            self._prepare_qk(op, 0, QKSteps())

    def _prepare_qk(self, op: ops.Attend, heads: int, steps: QKSteps) -> None:
        """Write the cache after `steps`, which are also applied to the first `heads` queries."""
        constants, preparation = self._preparation(op, steps)
        constants |= {"HD": op.head_dim, **self._cache_constants(op), "WARPS": WARPS}
        what = self._kernel(prepare_qk, 32 * WARPS, LATENT=int(op.v == op.k), **constants)
        arguments = PrepareArguments(
            q=self._at(op.q),
            k=self._at(op.k),
            v=self._at(op.v),
            preparation=preparation,
            angle_stride=steps.angles.stride if steps.angles else 0,
            cache=self._cached(op),
            heads=heads,
            kv_heads=op.kv_heads,
        )
        stored = op.kv_heads if op.v == op.k else 2 * op.kv_heads
        grid = -(-(heads + stored) // WARPS), self._n_rows[False]
        self._emit(what, grid, arguments, 4 * WARPS * self._padded(op))

    def _preparation(self, op: ops.Attend, steps: QKSteps) -> tuple[dict[str, int | float], QKPreparation]:
        """Constants and arguments of `steps`."""
        norms = steps.q_norm, steps.k_norm
        kinds = [0 if n is None else 1 if len(n.weight) == op.head_dim else 2 for n in norms]
        constants: dict[str, int | float] = {"Q_NORM": kinds[0], "K_NORM": kinds[1]}
        constants |= {"ROPE": int(steps.rope is not None), "INVERSE_HD": 1 / op.head_dim}
        constants |= {"INTERLEAVED": int(steps.rope is not None and steps.rope.interleaved)}
        weights = [self.memory.vector(n.weight) if n else 0 for n in norms]
        return constants, QKPreparation(
            q_norm=weights[0],
            k_norm=weights[1],
            eps=next((n.eps for n in norms if n), 1.0),
            pairs=len(steps.rope.inv_freq) if steps.rope else 0,
            angles=steps.angles.address if steps.angles else 0,
            frequencies=steps.frequencies.address if steps.frequencies else 0,
            factor=float(steps.rope.attention_factor) if steps.rope else 1.0,
        )

    def _padded(self, op: ops.Attend) -> int:
        """Dimensions of a head in the cache."""
        return padded_head_dim(op.head_dim, self.capacity.cache_bits)

    def _cache_constants(self, op: ops.Attend) -> dict[str, int]:
        """The constants of `kernels/attention/cache.py`."""
        page = self.capacity.page_size.bit_length() - 1
        return {"KV": self.capacity.cache_bits, "DP": self._padded(op), "PAGE": page}

    def _cached(self, op: ops.Attend) -> PagedCache:
        """The cache of an op's layer."""
        keys, values = self.cache(op.layer, self.program.cache_layers[op.layer])
        inputs = self.inputs
        return PagedCache(
            keys=keys.address,
            values=values.address,
            block_tables=Region(inputs.table, inputs.table_stride),
            sequences=inputs.sequences,
            positions=inputs.positions,
        )
