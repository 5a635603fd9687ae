"""The instructions of several residual streams, and of products head by head."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...quant.kernel import Kernel
from ...quant.levels import LANES
from .. import ops
from .kernels import CORRECT_STREAMS, JOIN_HEADS, PREDICT_STREAMS
from .memory import Region
from .records import STREAMS
from .rows import RowsLowering


class StreamsLowering(RowsLowering):
    """What both kinds of lists have in common; they differ in where an op's results go."""

    def _result(self, buffer: ops.Buffer) -> Region:
        """Where pointwise work writes a buffer."""
        raise NotImplementedError

    def _how(self, buffer: ops.Buffer) -> tuple[str, dict[str, Any]]:
        """How threads share pointwise work on a buffer's rows, and what its record says of that."""
        raise NotImplementedError

    def _head_product(self, x: ops.Buffer, out: ops.Buffer, head: int, op: ops.HeadMatMul) -> None:
        """The product of one head into columns of its own of `out`."""
        raise NotImplementedError

    def _stream(self, op: ops.PredictStreams | ops.CorrectStreams) -> None:
        correct = isinstance(op, ops.CorrectStreams)
        x, out = (op.x, op.x) if isinstance(op, ops.CorrectStreams) else (op.streams[op.active], op.out)
        regions = {"x": self._input(x), "coefficients": self._input(op.coefficients)}
        sources = [self._input(stream) for stream in op.streams]
        targets = [self._result(stream) for stream in op.streams]
        target = self._result(out)
        table = np.array(
            [
                (s.address, s.stride, s.private, t.address, t.stride, t.private)
                for s, t in zip(sources, targets, strict=True)
            ],
            np.int64,
        )
        self._memory.keep(table)
        scratch = self._memory.private("streams", 4 * LANES * len(sources))
        values: dict[str, Any] = (
            {"weight": self._memory.vector(op.weight)} if isinstance(op, ops.CorrectStreams) else {}
        )
        for name, region in (regions | {"out": target}).items():
            values |= {
                name: region.address,
                f"{name}_stride": region.stride,
                f"{name}_private": region.private,
            }
        sharing, how = self._how(op.streams[0])
        kernel: Kernel = CORRECT_STREAMS if correct else PREDICT_STREAMS
        self._list.emit(
            kernel,
            STREAMS,
            [*regions.values(), *sources],
            [*targets, target],
            sharing,
            streams=table.ctypes.data,
            n=len(sources),
            active=op.active,
            width=op.streams[0].width,
            scratch=scratch.address,
            scratch_stride=scratch.private,
            **values,
            **how,
        )

    def _multiply_heads(self, op: ops.HeadMatMul) -> None:
        """Each head's product by itself, then all of them joined with the columns that are not multiplied."""
        outputs, inputs = op.weights[0].shape
        heads = len(op.weights)
        padded = -(-outputs // LANES) * LANES
        products = ops.Buffer(f"{heads} products of {padded}", heads * padded, op.x.wanted)
        for head in range(heads):
            self._head_product(op.x, products, head, op)
        self._pointwise(
            JOIN_HEADS,
            op.out,
            op.x,
            products,
            groups=heads,
            length=outputs,
            start=inputs,
            weight_stride=padded,
        )
