"""Launches of recurrent ops and of those of several residual streams."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ....quant.errors import UnsupportedModel
from ... import ops
from ..abi.arguments import Region
from ..kernels.common import altup
from ..kernels.recurrent import delta_prefill as delta_chunk
from ..kernels.recurrent import scan_prefill as scan_chunk
from ..kernels.recurrent.conv import (
    SPLIT,
    ConvArguments,
    ConvEdgesArguments,
    ConvPrefillArguments,
    causal_conv,
    conv_prefill,
    conv_prefill_edges,
)
from ..kernels.recurrent.delta import DeltaArguments, delta_rule
from ..kernels.recurrent.scan import ScanArguments, state_scan
from ..kernels.recurrent.state import SequenceStates
from .base import LaunchBuilder

WARPS = 2  # of a block, row by row
STATE_ROWS = 4  # R: rows or columns of a head's state that a warp takes
MAX_PARTS = 8  # 32 numbers each of such a row that a lane keeps
CHUNK = 4  # rows of a prompt at once: see `kernels/recurrent/chunk4.py`
CHUNK_WARPS = 4  # of a block
MAX_CHUNK_SIZE = 128  # numbers of a column of the state, for four columns in registers


class RecurrentLowering(LaunchBuilder):
    def _states(self, layer: int) -> SequenceStates:
        return SequenceStates(
            states=self.state(layer, self.program.state_layers[layer]),
            sequences=self.inputs.sequences,
            positions=self.inputs.positions,
        )

    # Convolutions

    def _causal_conv(self, op: ops.CausalConv) -> None:
        if self._one_prompt:
            self._conv_prefill(op)
            return
        channels = op.x.width
        arguments = ConvArguments(
            x=self._at(op.x),
            out=self._at(op.out),
            weight=self.memory.vector(op.weight),
            bias=0 if op.bias is None else self.memory.vector(op.bias),
            state=self._states(op.state),
            rows=self._n_rows[op.x.logits_rows],
            channels=channels,
        )
        what = self._kernel(causal_conv, 128, **self._conv_constants(op))
        self._emit(what, (-(-channels // 128),), arguments)
        self._invalidate(op.out)

    def _conv_prefill(self, op: ops.CausalConv) -> None:
        """The rows of one prompt, in splits that run side by side."""
        taps, channels, rows = op.weight.shape[1], op.x.width, self._n_rows[op.x.logits_rows]
        splits = -(-self.capacity.max_rows // SPLIT)
        edges = self.memory.rows(f"conv edges {taps} {channels}", splits, 4 * (taps - 1) * channels)
        grid = -(-channels // 128), -(-rows // SPLIT)
        first = ConvEdgesArguments(
            x=self._at(op.x), edges=edges, state=self._states(op.state), rows=rows, channels=channels
        )
        self._emit(self._kernel(conv_prefill_edges, 128, TAPS=taps), grid, first)
        arguments = ConvPrefillArguments(
            x=self._at(op.x),
            out=self._at(op.out),
            weight=self.memory.vector(op.weight),
            bias=0 if op.bias is None else self.memory.vector(op.bias),
            edges=edges,
            rows=rows,
            channels=channels,
        )
        self._emit(self._kernel(conv_prefill, 128, **self._conv_constants(op)), grid, arguments)
        self._invalidate(op.out)

    @staticmethod
    def _conv_constants(op: ops.CausalConv) -> dict[str, int]:
        return {"TAPS": op.weight.shape[1], "BIAS": int(op.bias is not None), "SILU": int(op.silu)}

    # Scans

    def _row_by_row(self, head_dim: int, heads: int, size: int) -> tuple[tuple[int, int], dict[str, int]]:
        """The grid of a scan row by row over states of that size, and its constants."""
        parts = -(-size // 32)
        if parts > MAX_PARTS:
            raise UnsupportedModel(f"the CUDA machine has no recurrence over states of {size} yet")
        constants = {"WARPS": WARPS, "R": STATE_ROWS, "PARTS": parts}
        return (-(-head_dim // (WARPS * STATE_ROWS)), heads), constants

    def _in_chunks(self, x: Region, size: int) -> bool:
        """Whether a prompt's scan over states of that size can take chunks of rows of x."""
        aligned = x.address % 16 == 0 and x.stride % 16 == 0
        return self._one_prompt and aligned and size % 4 == 0 and size <= MAX_CHUNK_SIZE

    def _coefficients(self, heads: int, size: int) -> int:
        """The address of `size` float32 for each chunk and head."""
        chunks = -(-self.capacity.max_rows // CHUNK)
        return self.memory.rows(f"chunks {heads} {size}", chunks, 4 * size * heads).address

    @staticmethod
    def _chunk_constants(size: int) -> tuple[dict[str, int], dict[str, int]]:
        """Constants of the kernel that computes coefficients, and of the scan."""
        first = {"WARPS": CHUNK_WARPS, "PARTS": -(-size // 32)}
        return first, {"WARPS": CHUNK_WARPS, "PARTS": -(-size // 64), "FULL": int(size % 64 == 0)}

    def _state_scan(self, op: ops.StateScan) -> None:
        if self._in_chunks(self._at(op.xbc), op.state_size) and op.heads * op.head_dim % 4 == 0:
            self._scan_prefill(op)
            return
        grid, constants = self._row_by_row(op.head_dim, op.heads, op.state_size)
        arguments = ScanArguments(
            xbc=self._at(op.xbc),
            step=self._at(op.step),
            out=self._at(op.out),
            a=self.memory.vector(op.a),
            skip=self.memory.vector(op.skip),
            step_bias=self.memory.vector(op.step_bias),
            step_scale=op.step_scale,
            groups=op.groups,
            heads=op.heads,
            head_dim=op.head_dim,
            state_size=op.state_size,
            state=self._states(op.state),
            rows=self._n_rows[op.out.logits_rows],
        )
        self._emit(self._kernel(state_scan, 32 * WARPS, **constants), grid, arguments)
        self._invalidate(op.out)

    def _scan_prefill(self, op: ops.StateScan) -> None:
        rows, coefficients = self._n_rows[op.out.logits_rows], self._coefficients(op.heads, scan_chunk.SIZE)
        first, constants = self._chunk_constants(op.state_size)
        chunks = scan_chunk.ScanChunksArguments(
            xbc=self._at(op.xbc),
            step=self._at(op.step),
            a=self.memory.vector(op.a),
            skip=self.memory.vector(op.skip),
            step_bias=self.memory.vector(op.step_bias),
            step_scale=op.step_scale,
            groups=op.groups,
            heads=op.heads,
            head_dim=op.head_dim,
            state_size=op.state_size,
            coefficients=coefficients,
            rows=rows,
        )
        what = self._kernel(scan_chunk.scan_chunks, 32 * CHUNK_WARPS, **first)
        self._emit(what, (op.groups, -(-rows // (CHUNK * CHUNK_WARPS))), chunks)
        arguments = scan_chunk.ScanPrefillArguments(
            xbc=self._at(op.xbc),
            coefficients=coefficients,
            out=self._at(op.out),
            groups=op.groups,
            heads=op.heads,
            head_dim=op.head_dim,
            state_size=op.state_size,
            state=self._states(op.state),
            rows=rows,
        )
        scan = self._kernel(scan_chunk.scan_prefill, 32 * CHUNK_WARPS, **constants)
        self._emit(scan, (-(-op.head_dim // (8 * CHUNK_WARPS)), op.heads), arguments)
        self._invalidate(op.out)

    def _delta_rule(self, op: ops.DeltaRule) -> None:
        if self._in_chunks(self._at(op.qkv), op.key_dim):
            self._delta_prefill(op)
            return
        grid, constants = self._row_by_row(op.head_dim, op.heads, op.key_dim)
        arguments = DeltaArguments(
            qkv=self._at(op.qkv),
            beta=self._at(op.beta),
            step=self._at(op.step),
            out=self._at(op.out),
            a=self.memory.vector(op.a),
            step_bias=self.memory.vector(op.step_bias),
            eps=op.eps,
            groups=op.groups,
            heads=op.heads,
            head_dim=op.head_dim,
            key_dim=op.key_dim,
            inverse_root=op.key_dim**-0.5,
            state=self._states(op.state),
            rows=self._n_rows[op.out.logits_rows],
        )
        what = self._kernel(delta_rule, 32 * WARPS, TILED=int(op.tiled), **constants)
        self._emit(what, grid, arguments)
        self._invalidate(op.out)

    def _delta_prefill(self, op: ops.DeltaRule) -> None:
        rows, coefficients = self._n_rows[op.out.logits_rows], self._coefficients(op.heads, delta_chunk.SIZE)
        first, constants = self._chunk_constants(op.key_dim)
        chunks = delta_chunk.DeltaChunksArguments(
            qkv=self._at(op.qkv),
            beta=self._at(op.beta),
            step=self._at(op.step),
            a=self.memory.vector(op.a),
            step_bias=self.memory.vector(op.step_bias),
            eps=op.eps,
            groups=op.groups,
            heads=op.heads,
            key_dim=op.key_dim,
            inverse_root=op.key_dim**-0.5,
            coefficients=coefficients,
            rows=rows,
        )
        what = self._kernel(delta_chunk.delta_chunks, 32 * CHUNK_WARPS, TILED=int(op.tiled), **first)
        self._emit(what, (op.groups, -(-rows // (CHUNK * CHUNK_WARPS))), chunks)
        arguments = delta_chunk.DeltaPrefillArguments(
            qkv=self._at(op.qkv),
            coefficients=coefficients,
            out=self._at(op.out),
            groups=op.groups,
            heads=op.heads,
            head_dim=op.head_dim,
            key_dim=op.key_dim,
            state=self._states(op.state),
            rows=rows,
        )
        scan = self._kernel(delta_chunk.delta_prefill, 32 * CHUNK_WARPS, TILED=int(op.tiled), **constants)
        self._emit(scan, (-(-op.head_dim // (8 * CHUNK_WARPS)), op.heads), arguments)
        self._invalidate(op.out)

    # Streams

    def _sparsify(self, op: ops.GaussianTopK) -> None:
        arguments = [*self._at(op.x), op.x.width, 1 / op.x.width, float(op.std_multiplier)]
        self._emit(self._kernel(altup.sparsify, 256), (1, self._n_rows[op.x.logits_rows]), arguments, 64)
        self._invalidate(op.x)

    def _match_magnitude(self, op: ops.MatchMagnitude) -> None:
        rows = [*self._at(op.x), *self._at(op.like), op.x.width]
        what, grid = self._kernel(altup.match_magnitude, 256), (1, self._n_rows[op.x.logits_rows])
        self._emit(what, grid, [*rows, 1 / op.x.width, float(op.floor)], 64)
        self._invalidate(op.x)

    def _streams(self, streams: Sequence[ops.Buffer]) -> tuple[Region, int]:
        """The first of the residual streams, and the bytes from each to the next one."""
        regions = [self._at(b) for b in streams]
        steps = {b.address - a.address for a, b in pairwise(regions)}
        if len(steps) != 1:
            raise UnsupportedModel("the CUDA machine needs residual streams side by side")
        return regions[0], steps.pop()

    def _predict_streams(self, op: ops.AltUpPredict) -> None:
        streams, step = self._streams(op.streams)
        arguments = altup.PredictArguments(
            streams=streams,
            step=step,
            coefficients=self._at(op.coefficients),
            out=self._at(op.out),
            width=op.out.width,
        )
        constants = {"N": len(op.streams), "ACTIVE": op.active}
        what = self._kernel(altup.predict_streams, 256, **constants)
        self._emit(what, (-(-op.out.width // 256), self._n_rows[op.out.logits_rows]), arguments)
        self._invalidate(op.out, *op.streams)

    def _correct_streams(self, op: ops.AltUpCorrect) -> None:
        streams, step = self._streams(op.streams)
        arguments = altup.CorrectArguments(
            streams=streams,
            step=step,
            coefficients=self._at(op.coefficients),
            x=self._at(op.x),
            weight=self.memory.vector(op.weight),
            width=op.x.width,
        )
        constants = {"N": len(op.streams), "ACTIVE": op.active}
        what = self._kernel(altup.correct_streams, 256, **constants)
        self._emit(what, (-(-op.x.width // 256), self._n_rows[op.x.logits_rows]), arguments)
        self._invalidate(op.x, *op.streams)
