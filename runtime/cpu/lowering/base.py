"""What the lists of instructions for many rows and for one row have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ....quant.block import QTensor
from ....quant.jit.kernel import CpuKernel
from ... import ops
from ...config.fields import UnsupportedModel
from ...ops.fused import GatedMatMul
from ..abi.instructions import ROWS, Instructions
from ..abi.records import EMBED, POINTWISE
from ..abi.sizes import embed_scratch_bytes
from ..arena import Memory, Region
from ..kernels import (
    ADD,
    ADD_POSITIONS,
    ANGLES,
    EMBEDS,
    GATE,
    GELU_GATE,
    GROW,
    LAYER_NORM,
    MATCH_MAGNITUDE,
    RMS_NORM,
    SIGMOID_GATE,
    SPARSIFY,
)
from .weight_panels import ACTIVATIONS, Experts, Layout, Matrix, fused


class RowsLowering(ABC):
    """Lowers a program op by op (`_lower`); `matrices` by the identity of their tensors."""

    def __init__(
        self, program: ops.Program, layout: Layout, memory: Memory, matrices: Mapping[int, Matrix]
    ) -> None:
        self._program = program
        self._layout = layout
        self._memory = memory
        self._matrices = matrices
        self._list = Instructions(memory)
        self._quantized: set[str] = set()  # buffers whose 8-bit form holds their present contents
        self._turns = list(dict.fromkeys(turns(op) for op in program.ops if isinstance(op, ops.RoPE)))
        self._rotations: set[int] = set()  # numbers of those whose cos and sin are computed already
        self._one_vectors: dict[int, np.ndarray] = {}
        self.by_length: dict[str, ops.RoPE] = {}  # by where the machine puts the frequencies of a step's rows
        self.boundary_out: list[Region] = []  # where the program's `boundary_out` are in the end

    def instructions(self) -> Instructions:
        for buffer in self._program.boundary_in:
            self._boundary_in(buffer)
        for op in fused(self._program):
            self._lower(op)
        self.boundary_out = [self._input(buffer) for buffer in self._program.boundary_out]
        return self._list

    @abstractmethod
    def _boundary_in(self, buffer: ops.Buffer) -> None:
        """The buffer is where all threads see it."""

    @abstractmethod
    def _lower(self, op: ops.Op | GatedMatMul) -> None: ...

    def _shared(self, buffer: ops.Buffer) -> Region:
        """The buffer as all threads see it."""
        return self._memory.rows(buffer.name, self._most(buffer), 4 * buffer.width)

    def _most(self, buffer: ops.Buffer) -> int:
        """The most rows that a step can have of a buffer."""
        return self._layout.rows(buffer)

    @abstractmethod
    def _input(self, buffer: ops.Buffer) -> Region:
        """Where an op finds a buffer."""

    @abstractmethod
    def _output(self, buffer: ops.Buffer) -> Region:
        """Where an op writes a buffer that all threads see."""

    def _experts(self, tensors: tuple[QTensor, ...]) -> Experts:
        return Experts(tuple(self._matrices[id(tensor)] for tensor in tensors))

    def _expert_biases(self, biases: np.ndarray | None) -> tuple[int, int]:
        """Address of float32 [experts, …] and bytes from one to the next; zeros if there are none."""
        return (0, 0) if biases is None else self._memory.matrix(biases)

    def _embed_into(self, op: ops.Embed, out: Region) -> bool:
        """Look the step's tokens up, each thread by itself into a private region; False if the table is not
        repacked: then the machine looks them up in the file."""
        matrix = self._matrices.get(id(op.table))
        if matrix is None:
            return False
        fields = matrix.fields()
        scratch = self._memory.private("embed", embed_scratch_bytes())
        self._list.emit(
            EMBEDS[op.table.format.name],
            EMBED,
            [],
            [out],
            ROWS,
            panels=matrix.address,
            panel_bytes=fields["panel_bytes"],
            n_blocks=fields["n_blocks"],
            width=fields["width"],
            out=out.address,
            out_stride=out.stride,
            out_private=out.private,
            scratch=scratch.address,
            scratch_stride=scratch.private,
            every=bool(out.private),
            tokens=op.table.shape[0],
            scale=op.scale,
        )
        return True

    def _lower_pointwise(self, op: ops.Op) -> None:
        """An op that treats every row by itself, by the way of `_pointwise`."""
        vector, run = self._memory.vector, self._pointwise
        match op:
            case ops.RMSNorm():
                own = len(op.weight) == op.x.width  # a weight for every column, else the same for each part
                how: dict[str, Any] = {
                    "weight_stride": 4 * op.x.width // op.groups if own else 0,
                    "length": op.x.width if own else op.groups * len(op.weight),
                }
                run(RMS_NORM, op.out, op.x, weight=vector(op.weight), groups=op.groups, number=op.eps, **how)
            case ops.LayerNorm():
                bias = 0 if op.bias is None else vector(op.bias)
                weight = vector(op.weight)
                run(LAYER_NORM, op.out, op.x, weight=weight, bias=bias, groups=op.groups, number=op.eps)
            case ops.GatedActivation():
                gate = ACTIVATIONS.get(op.kind, 0)
                up = self._input(op.up)
                up = replace(up, address=up.address + 4 * op.up_start)
                run(_gate(op.kind), op.out, op.gate, up, gate=gate, number=op.scale)
            case ops.Activation():
                ones = Region("ones", vector(self._ones(op.x.width)), 0)
                gate = ACTIVATIONS.get(op.kind, 0)
                run(_gate(op.kind), op.out, op.x, ones, gate=gate, number=1.0)
            case ops.Add():
                run(ADD, op.out, op.x, op.out, number=op.scale, other_number=op.keep)
            case ops.AddPositions():
                table, stride = self._memory.table(op.table)
                run(ADD_POSITIONS, op.x, op.x, weight=table, weight_stride=stride)
            case ops.Sparsify():
                run(SPARSIFY, op.x, op.x, number=op.deviations)
            case ops.MatchMagnitude():
                run(MATCH_MAGNITUDE, op.x, op.x, op.like, number=op.floor)
            case ops.SigmoidGate():
                run(SIGMOID_GATE, op.x, op.x, op.gate, length=op.gate.width)
            case ops.GrowQueries():
                run(GROW, op.q, op.q, number=op.beta, length=op.length)
            case _:
                raise UnsupportedModel(f"the CPU machine has no kernel for {type(op).__name__}")

    @abstractmethod
    def _pointwise(
        self,
        kernel: CpuKernel,
        out: ops.Buffer,
        x: ops.Buffer,
        y: ops.Buffer | Region | None = None,
        **values: Any,
    ) -> None:
        """out = kernel(x, y)."""

    def _ones(self, width: int) -> np.ndarray:
        return self._one_vectors.setdefault(width, np.ones(width, np.float32))

    def _rotation(self, op: ops.RoPE) -> tuple[Region, Region]:
        """cos and sin of the rows' positions, computed once for all ops that agree on the angles."""
        frequencies = np.ascontiguousarray(op.inv_freq, np.float32)
        key = self._turns.index(turns(op))
        cos, sin = (
            self._memory.rows(f"{name} {key}", self._layout.max_rows, 4 * frequencies.size)
            for name in ("cos", "sin")
        )
        if key not in self._rotations:
            self._rotations.add(key)
            weight, stride = self._memory.vector(frequencies), 0
            if op.long_inv_freq:
                rows = self._memory.rows(f"frequencies {key}", self._layout.max_rows, 4 * frequencies.size)
                weight, stride = rows.address, rows.stride
                self.by_length[rows.name] = op
            self._list.emit(
                ANGLES,
                POINTWISE,
                [],
                [cos, sin],
                ROWS,
                weight=weight,
                weight_stride=stride,
                n_angles=frequencies.size,
                number=op.attention_factor,
                cos=cos.address,
                sin=sin.address,
                angle_stride=cos.stride,
            )
        return cos, sin


def turns(op: ops.RoPE) -> tuple:
    """What the angles depend on but the position."""
    return (
        np.asarray(op.inv_freq, np.float32).tobytes(),
        op.attention_factor,
        op.original_context,
        op.long_inv_freq,
    )


def _gate(kind: str) -> CpuKernel:
    return GATE if kind in ACTIVATIONS else GELU_GATE
