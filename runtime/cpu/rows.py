"""What the lists of instructions for many rows and for one row have in common."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .. import ops
from .instructions import ROWS, Instructions
from .kernels import ANGLES, EMBEDS
from .layout import GatedMatMul, Layout, Matrix, fused
from .memory import Memory, Region
from .records import EMBED, POINTWISE
from .sizes import embed_scratch_bytes


class RowsLowering:
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
        self._rotations: set[str] = set()  # whose cos and sin are computed already

    def instructions(self) -> Instructions:
        for op in fused(self._program):
            self._lower(op)
        return self._list

    def _lower(self, op: ops.Op | GatedMatMul) -> None:
        raise NotImplementedError

    def _shared(self, buffer: ops.Buffer) -> Region:
        """The buffer as all threads see it."""
        return self._memory.rows(buffer.name, self._layout.rows(buffer), 4 * buffer.width)

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
            scale=op.scale,
        )
        return True

    def _rotation(self, op: ops.RoPE) -> tuple[Region, Region]:
        """cos and sin of the rows' positions, computed once for all ops that agree on the angles."""
        frequencies = np.ascontiguousarray(op.inv_freq, np.float32)
        key = f"{frequencies.tobytes().hex()} {op.attention_factor}"
        cos, sin = (
            self._memory.rows(f"{name} {key}", self._layout.max_rows, 4 * frequencies.size)
            for name in ("cos", "sin")
        )
        if key not in self._rotations:
            self._rotations.add(key)
            self._list.emit(
                ANGLES,
                POINTWISE,
                [],
                [cos, sin],
                ROWS,
                weight=self._memory.vector(frequencies),
                n_angles=frequencies.size,
                number=op.attention_factor,
                cos=cos.address,
                sin=sin.address,
                angle_stride=cos.stride,
            )
        return cos, sin
