"""Shared by all lowering: a machine's capacity, the walk over the program, pointwise ops, RoPE angles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ....quant.errors import UnsupportedModel
from ....quant.jit.kernel import CpuKernel
from ... import ops
from ...ops.fused import GATED_OPS, GatedMatMul
from ..abi.instructions import ROWS, Instructions
from ..abi.records import EMBED, POINTWISE
from ..abi.sizes import embed_scratch_bytes
from ..arena import Arena, Region
from ..kernels import (
    ADD,
    ADD_POSITIONS,
    EMBEDS,
    GATED_ACTIVATION,
    GATED_GELU,
    GROW_QUERIES,
    LAYER_NORM,
    MATCH_MAGNITUDE,
    RMS_NORM,
    ROPE_ANGLES,
    SIGMOID_GATE,
    SPARSIFY,
)
from .fusing import ACTIVATIONS, fused
from .weight_panels import WeightPanels


@dataclass(frozen=True)
class MachineConfig:
    """The machine's capacity. `cache_type` is one of `sizes.CACHE_TYPES`."""

    n_pages: int  # pages of the KV cache
    page_size: int  # tokens a page
    n_threads: int
    max_rows: int  # rows of a step at most
    max_logits: int  # rows of a step whose logits are computed, at most
    cache_type: str  # of the KV cache
    # By layer of the cache, what its keys lack: float32 [kv_heads, padded head_dim] (key_offsets.py).
    key_offsets: Mapping[int, np.ndarray] = field(default_factory=dict)
    # By layer, what they are multiplied by then, in the same shape (key_balance.py).
    key_balance: Mapping[int, np.ndarray] = field(default_factory=dict)
    states: tuple[np.ndarray, ...] = ()  # states of recurrent ops, float32 [sequences, …] each

    def rows(self, buffer: ops.Buffer) -> int:
        """The most rows that a buffer can have in a step."""
        return self.max_logits if buffer.logits_rows else self.max_rows


class BaseLowering(ABC):
    """Lowers a program to a list of instructions, op by op.

    `matrices` holds the repacked weights by the identity (`id`) of their tensors.
    """

    row_tile = 1  # the fields of STEP
    expert_tile = 1

    def __init__(
        self,
        program: ops.Program,
        config: MachineConfig,
        arena: Arena,
        matrices: Mapping[int, WeightPanels],
    ) -> None:
        self._program = program
        self._config = config
        self._arena = arena
        self._matrices = matrices
        self._list = Instructions(arena)
        self._quantized: set[str] = set()  # buffers whose present contents have an 8-bit copy already
        # RoPE ops with equal keys share cos and sin, which are called by the index of the key.
        self._angle_keys = list(
            dict.fromkeys(angle_key(op) for op in program.ops if isinstance(op, ops.RoPE))
        )
        self._computed_angles: set[int] = set()  # indices whose cos and sin have been computed
        self._one_vectors: dict[int, np.ndarray] = {}
        # RoPE ops whose frequencies depend on the sequence's length, by the region that the machine fills.
        self.length_dependent: dict[str, ops.RoPE] = {}
        self.boundary_out: list[Region] = []  # final locations of `Program.boundary_out`
        self.result: Region | None = None  # final location of `Program.logits`
        self.starts: list[int] = []  # of each op of the program the first instruction, and the number of all

    @cached_property
    def instructions(self) -> Instructions:
        """The whole program, lowered."""
        for buffer in self._program.boundary_in:
            self._boundary_in(buffer)
        for op in fused(self._program):
            self.starts += [len(self._list.names)] * (GATED_OPS if isinstance(op, GatedMatMul) else 1)
            self._lower(op)
        self.starts.append(len(self._list.names))
        self.boundary_out = [self._input(buffer) for buffer in self._program.boundary_out]
        logits = self._program.logits
        if any(getattr(op, "out", None) == logits for op in self._program.ops):
            self.result = self._input(logits)
        else:  # the program is the beginning of another one, for a look at its buffers
            self.result = self._shared(logits)
        return self._list

    def result_rows(self) -> np.ndarray:
        """Where a step leaves `Program.logits`, float32 [rows, width]."""
        result, width = self.result, self._program.logits.width
        assert result
        rows = result.floats(1) if result.thread_stride else self._arena.floats(result.name)
        return rows[:, :width]

    @abstractmethod
    def _lower(self, op: ops.Op | GatedMatMul) -> None:
        """Append the instructions of one op."""

    @abstractmethod
    def _boundary_in(self, buffer: ops.Buffer) -> None:
        """Note that the machine fills the shared region of a buffer before the step."""

    @abstractmethod
    def _input(self, buffer: ops.Buffer) -> Region:
        """The region that holds a buffer's present contents."""

    @abstractmethod
    def _output(self, buffer: ops.Buffer) -> Region:
        """The shared region that the next instruction overwrites with a buffer."""

    @abstractmethod
    def _pointwise(
        self,
        kernel: CpuKernel,
        out: ops.Buffer,
        x: ops.Buffer,
        y: ops.Buffer | Region | None = None,
        **values: Any,
    ) -> None:
        """Append out = kernel(x, y) with further POINTWISE fields."""

    def _shared(self, buffer: ops.Buffer) -> Region:
        """The region of a buffer that all threads share."""
        return self._arena.rows(buffer.name, self._max_rows(buffer), 4 * buffer.width)

    def _max_rows(self, buffer: ops.Buffer) -> int:
        """The most rows that a buffer can have in a step."""
        return self._config.rows(buffer)

    def _embed_into(self, op: ops.Embed, out: Region) -> bool:
        """Look up the step's tokens, in a region with a copy for each thread by every thread.

        False if the table is not repacked: then the machine looks the tokens up in the file before the step.
        """
        matrix = self._matrices.get(id(op.table))
        if matrix is None:
            return False
        fields = matrix.fields()
        scratch = self._arena.per_thread("embed", embed_scratch_bytes())
        self._list.append(
            EMBEDS[op.table.format.name],
            EMBED,
            [],
            [out],
            ROWS,
            panels=matrix.address,
            panel_bytes=fields["panel_bytes"],
            n_blocks=fields["n_blocks"],
            width=fields["width"],
            scratch=scratch.address,
            scratch_stride=scratch.thread_stride,
            replicated=bool(out.thread_stride),
            tokens=op.table.shape[0],
            scale=op.scale,
            **out.fields("out"),
        )
        return True

    def _lower_pointwise(self, op: ops.Op) -> None:
        """Append an op whose rows are independent. UnsupportedModel if there is no kernel for it."""
        vector, run = self._arena.vector, self._pointwise
        match op:
            case ops.RMSNorm():
                self._rms_norm(op)
            case ops.LayerNorm():
                bias = 0 if op.bias is None else vector(op.bias)
                weight = vector(op.weight)
                run(LAYER_NORM, op.out, op.x, weight=weight, bias=bias, groups=op.groups, scalar=op.eps)
            case ops.GatedActivation():
                gate = ACTIVATIONS.get(op.kind, 0)
                up = self._input(op.up)
                up = replace(up, address=up.address + 4 * op.up_start)
                run(activation_kernel(op.kind), op.out, op.gate, up, gate=gate, scalar=op.scale)
            case ops.Activation():
                gate = ACTIVATIONS.get(op.kind, 0)
                ones = self._ones(op.x.width)
                run(activation_kernel(op.kind), op.out, op.x, ones, gate=gate, scalar=1.0)
            case ops.Add():
                run(ADD, op.out, op.x, op.out, scalar=op.scale, other_scalar=op.keep)
            case ops.AddPositions():
                table, stride = self._arena.table(op.table)
                run(ADD_POSITIONS, op.x, op.x, weight=table, weight_stride=stride)
            case ops.GaussianTopK():
                run(SPARSIFY, op.x, op.x, scalar=op.std_multiplier)
            case ops.MatchMagnitude():
                run(MATCH_MAGNITUDE, op.x, op.x, op.like, scalar=op.floor)
            case ops.SigmoidGate():
                run(SIGMOID_GATE, op.x, op.x, op.gate, length=op.gate.width)
            case ops.ScaleQueries():
                run(GROW_QUERIES, op.q, op.q, scalar=op.beta, length=op.length)
            case _:
                raise UnsupportedModel(f"the CPU machine has no kernel for {type(op).__name__}")

    def _rms_norm(self, op: ops.RMSNorm) -> None:
        """Append an RMS norm of whole rows or of groups of them."""
        whole = len(op.weight) == op.x.width  # a weight for each column, instead of one row for all groups
        self._pointwise(
            RMS_NORM,
            op.out,
            op.x,
            weight=self._arena.vector(op.weight),
            weight_stride=4 * op.x.width // op.groups if whole else 0,
            length=op.x.width if whole else op.groups * len(op.weight),
            groups=op.groups,
            scalar=op.eps,
        )

    def _ones(self, width: int) -> Region:
        """A row of ones, as the second operand of an activation that gates nothing."""
        ones = self._one_vectors.setdefault(width, np.ones(width, np.float32))
        return Region("ones", self._arena.vector(ones), 0)

    def _rope_angles(self, op: ops.RoPE) -> tuple[Region, Region]:
        """cos and sin of the rows' angles, float32 [rows, pairs], computed once for all ops of a key."""
        frequencies = np.ascontiguousarray(op.inv_freq, np.float32)
        index = self._angle_keys.index(angle_key(op))
        cos, sin = (
            self._arena.rows(f"{name} {index}", self._config.max_rows, 4 * frequencies.size)
            for name in ("cos", "sin")
        )
        if index in self._computed_angles:
            return cos, sin
        self._computed_angles.add(index)
        weight, stride = self._arena.vector(frequencies), 0
        if op.long_inv_freq:
            rows = self._arena.rows(f"frequencies {index}", self._config.max_rows, 4 * frequencies.size)
            weight, stride = rows.address, rows.stride
            self.length_dependent[rows.name] = op
        self._list.append(
            ROPE_ANGLES,
            POINTWISE,
            [],
            [cos, sin],
            ROWS,
            weight=weight,
            weight_stride=stride,
            scalar=op.attention_factor,
            **angle_fields(op, cos, sin),
        )
        return cos, sin


def angle_key(op: ops.RoPE) -> tuple:
    """All that the angles of a RoPE op depend on, except for the position."""
    return (
        np.asarray(op.inv_freq, np.float32).tobytes(),
        op.attention_factor,
        op.original_context,
        op.long_inv_freq,
    )


def angle_fields(op: ops.RoPE, cos: Region, sin: Region) -> dict[str, Any]:
    """The POINTWISE fields of the angles of a RoPE op."""
    return {
        "n_angles": len(op.inv_freq),
        "cos": cos.address,
        "sin": sin.address,
        "angle_stride": cos.stride,
    }


def rope_fields(op: ops.RoPE, cos: Region, sin: Region) -> dict[str, Any]:
    """The POINTWISE fields of a RoPE op, except those of x and out."""
    return {
        "groups": op.heads,
        "interleaved": op.interleaved,
        "start": op.start,
        **angle_fields(op, cos, sin),
    }


def activation_kernel(kind: str) -> CpuKernel:
    """The kernel of an activation that is an op of its own."""
    return GATED_ACTIVATION if kind in ACTIVATIONS else GATED_GELU
