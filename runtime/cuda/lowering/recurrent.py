"""Launches of recurrent ops and of those of several residual streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from ... import ops
from ...config.fields import UnsupportedModel
from ..compile.arguments import Region
from ..kernels.common import altup
from ..kernels.recurrent import conv, delta_prefill, recurrent, scan_prefill
from ..kernels.recurrent.conv import SPAN
from ..kernels.recurrent.delta_prefill import SIZE as DELTA_SIZE
from ..kernels.recurrent.scan_prefill import SIZE as SCAN_SIZE
from .base import Launches

WARPS = 2
ROWS = 4  # of a head's state, a warp
PROMPT_WARPS = 4
MOST_WHOLE = 128  # numbers of a column of the state, for four columns in registers
MOST_PARTS = 8  # of 32 numbers that a lane keeps of each of these


class RecurrentLowering(Launches):
    def _state(self, layer: int) -> Region:
        return self.state(layer, self.program.state_layers[layer])

    def _scan_shape(self, heads: int, head_dim: int, size: int) -> tuple[tuple[int, int], dict[str, int]]:
        """The grid of a scan over states of that size, and its constants."""
        parts = -(-size // 32)
        if parts > MOST_PARTS:
            raise UnsupportedModel(f"the CUDA machine has no recurrence over states of {size} yet")
        return (-(-head_dim // (WARPS * ROWS)), heads), {"WARPS": WARPS, "R": ROWS, "PARTS": parts}

    def _causal_conv(self, op: ops.CausalConv) -> None:
        if self._one_prompt:
            self._conv_prompt(op)
            return
        memory, inputs = self.memory, self.inputs
        taps, channels = op.weight.shape[1], op.x.width
        constants = {"TAPS": taps, "BIAS": int(op.bias is not None), "SILU": int(op.silu)}
        arguments = [*self._at(op.x), *self._at(op.out), memory.vector(op.weight)]
        arguments += [0 if op.bias is None else memory.vector(op.bias), *self._state(op.state)]
        arguments += [inputs.sequences, inputs.positions, self._n[op.x.logits_rows], channels]
        self._emit(
            self._kernel(recurrent.causal_conv, 128, **constants),
            (-(-channels // 128),),
            arguments,
        )
        self._wrote(op.out)

    def _conv_prompt(self, op: ops.CausalConv) -> None:
        """One sequence's rows, in spans."""
        taps, channels, rows = op.weight.shape[1], op.x.width, self._n[op.x.logits_rows]
        spans = -(-self.layout.max_rows // SPAN)
        edges = self.memory.rows(f"rows before spans, {taps} {channels}", spans, 4 * (taps - 1) * channels)
        sequence = [self.inputs.sequences, self.inputs.positions]
        grid = -(-channels // 128), -(-rows // SPAN)
        what = self._kernel(conv.conv_edges, 128, TAPS=taps)
        self._emit(what, grid, [*self._at(op.x), *edges, *self._state(op.state), *sequence, rows, channels])
        arguments = [*self._at(op.x), *self._at(op.out), self.memory.vector(op.weight)]
        arguments += [0 if op.bias is None else self.memory.vector(op.bias), *edges, rows, channels]
        constants = {"TAPS": taps, "BIAS": int(op.bias is not None), "SILU": int(op.silu)}
        self._emit(self._kernel(conv.conv_spans, 128, **constants), grid, arguments)
        self._wrote(op.out)

    def _four_rows(self, rows: Region, size: int) -> bool:
        """Whether a scan of columns of that size can take four rows at once, which lie in `rows`."""
        aligned = rows.address % 16 == 0 and rows.stride % 16 == 0
        return self._one_prompt and aligned and size % 4 == 0 and size <= MOST_WHOLE

    def _scan_prompt(
        self,
        kernels: tuple[Callable[..., None], Callable[..., None]],
        pairs: Sequence[int | float],
        size: int,
        sizes: Sequence[int],
        op: ops.StateScan | ops.DeltaRule,
        **constants: int,
    ) -> None:
        """`pairs`: what that launch is told before where its results go, `size` float32 of each four rows and
        head; `sizes`: groups, heads, head_dim, and of a column of the state.
        """
        groups, heads, head_dim, column = sizes
        rows, most = self._n[op.out.logits_rows], -(-self.layout.max_rows // 4)
        found = self.memory.rows(f"pairs of rows, {heads} {size}", most, 4 * size * heads).address
        what = self._kernel(
            kernels[0], 32 * PROMPT_WARPS, WARPS=PROMPT_WARPS, PARTS=-(-column // 32), **constants
        )
        self._emit(what, (groups, -(-rows // (4 * PROMPT_WARPS))), [*pairs, found, rows])
        constants |= {"WARPS": PROMPT_WARPS, "PARTS": -(-column // 64), "WHOLE": int(column % 64 == 0)}
        what = self._kernel(kernels[1], 32 * PROMPT_WARPS, **constants)
        arguments = [*pairs[:2], found, *self._at(op.out), *sizes, *self._state(op.state)]
        arguments += [self.inputs.sequences, self.inputs.positions, rows]
        self._emit(what, (-(-head_dim // (8 * PROMPT_WARPS)), heads), arguments)
        self._wrote(op.out)

    def _state_scan(self, op: ops.StateScan) -> None:
        if self._four_rows(self._at(op.xbc), op.state_size) and op.heads * op.head_dim % 4 == 0:
            pairs: list[int | float] = [*self._at(op.xbc), *self._at(op.step)]
            pairs += [self.memory.vector(v) for v in (op.a, op.skip, op.step_bias)]
            sizes = op.groups, op.heads, op.head_dim, op.state_size
            kernels = scan_prefill.scan_pairs, scan_prefill.scan_prompt
            self._scan_prompt(kernels, [*pairs, float(op.step_scale), *sizes], SCAN_SIZE, sizes, op)
            return
        grid, constants = self._scan_shape(op.heads, op.head_dim, op.state_size)
        arguments: list[int | float] = [*self._at(op.xbc), *self._at(op.step), *self._at(op.out)]
        arguments += [self.memory.vector(v) for v in (op.a, op.skip, op.step_bias)]
        arguments += [float(op.step_scale), op.groups, op.heads, op.head_dim, op.state_size]
        self._scan(recurrent.state_scan, grid, constants, arguments, op)

    def _delta_rule(self, op: ops.DeltaRule) -> None:
        if self._four_rows(self._at(op.qkv), op.key_dim):
            pairs: list[int | float] = [*self._at(op.qkv), *self._at(op.beta), *self._at(op.step)]
            pairs += [self.memory.vector(op.a), self.memory.vector(op.step_bias), float(op.eps)]
            pairs += [op.groups, op.heads, op.key_dim, op.key_dim**-0.5]
            sizes = op.groups, op.heads, op.head_dim, op.key_dim
            kernels = delta_prefill.delta_pairs, delta_prefill.delta_prompt
            self._scan_prompt(kernels, pairs, DELTA_SIZE, sizes, op, TILED=int(op.tiled))
            return
        grid, constants = self._scan_shape(op.heads, op.head_dim, op.key_dim)
        arguments: list[int | float] = [*self._at(op.qkv), *self._at(op.beta), *self._at(op.step)]
        arguments += [*self._at(op.out), *(self.memory.vector(v) for v in (op.a, op.step_bias))]
        arguments += [float(op.eps), op.groups, op.heads, op.head_dim, op.key_dim, op.key_dim**-0.5]
        self._scan(recurrent.delta_rule, grid, constants | {"TILED": int(op.tiled)}, arguments, op)

    def _scan(
        self,
        function: Callable[..., None],
        grid: tuple[int, int],
        constants: dict[str, int],
        arguments: Sequence[int | float],
        op: ops.StateScan | ops.DeltaRule,
    ) -> None:
        rows = [self.inputs.sequences, self.inputs.positions, self._n[op.out.logits_rows]]
        what = self._kernel(function, 32 * WARPS, **constants)
        self._emit(what, grid, [*arguments, *self._state(op.state), *rows])
        self._wrote(op.out)

    # Streams

    def _sparsify(self, op: ops.Sparsify) -> None:
        arguments = [*self._at(op.x), op.x.width, 1 / op.x.width, float(op.deviations)]
        self._emit(self._kernel(altup.sparsify, 256), (1, self._n[op.x.logits_rows]), arguments, 64)
        self._wrote(op.x)

    def _match_magnitude(self, op: ops.MatchMagnitude) -> None:
        rows = [*self._at(op.x), *self._at(op.like), op.x.width]
        what, grid = self._kernel(altup.match_magnitude, 256), (1, self._n[op.x.logits_rows])
        self._emit(what, grid, [*rows, 1 / op.x.width, float(op.floor)], 64)
        self._wrote(op.x)

    def _streams(self, streams: Sequence[ops.Buffer]) -> list[int]:
        """Where the first lies, and the bytes from each to the next."""
        regions = [self._at(b) for b in streams]
        steps = {b.address - a.address for a, b in pairwise(regions)}
        if len(steps) != 1:
            raise UnsupportedModel("the CUDA machine needs residual streams side by side")
        return [*regions[0], steps.pop()]

    def _predict_streams(self, op: ops.AltUpPredict) -> None:
        width = op.out.width
        arguments = [*self._streams(op.streams), *self._at(op.coefficients), *self._at(op.out), width]
        constants = {"N": len(op.streams), "ACTIVE": op.active}
        what = self._kernel(altup.predict_streams, 256, **constants)
        self._emit(what, (-(-width // 256), self._n[op.out.logits_rows]), arguments)
        self._wrote(op.out, *op.streams)

    def _correct_streams(self, op: ops.AltUpCorrect) -> None:
        width = op.x.width
        arguments = [*self._streams(op.streams), *self._at(op.coefficients), *self._at(op.x)]
        arguments += [self.memory.vector(op.weight), width]
        constants = {"N": len(op.streams), "ACTIVE": op.active}
        what = self._kernel(altup.correct_streams, 256, **constants)
        self._emit(what, (-(-width // 256), self._n[op.x.logits_rows]), arguments)
        self._wrote(op.x, *op.streams)
