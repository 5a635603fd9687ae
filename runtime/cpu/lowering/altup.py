"""The instructions of several residual streams, and of products head by head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ....quant.jit.kernel import CpuKernel
from ....quant.jit.levels import LANES
from ... import ops
from ..abi.records import MATMUL, STREAMS
from ..arena import Region
from ..kernels import CORRECT_STREAMS, JOIN_HEADS, PREDICT_STREAMS
from .base import RowsLowering


class StreamsLowering(RowsLowering):
    """What both kinds of lists have in common; they differ in where an op's results go."""

    _float_products: Mapping[str, CpuKernel]  # of float weights, by their type

    @abstractmethod
    def _result(self, buffer: ops.Buffer) -> Region:
        """Where pointwise work writes a buffer."""

    @abstractmethod
    def _how(self, buffer: ops.Buffer) -> tuple[str, dict[str, Any]]:
        """How threads share pointwise work on a buffer's rows, and what its record says of that."""

    def _stream(self, op: ops.AltUpPredict | ops.AltUpCorrect) -> None:
        values: dict[str, Any] = {}
        if isinstance(op, ops.AltUpCorrect):
            kernel, x, out = CORRECT_STREAMS, op.x, op.x
            values["weight"] = self._memory.vector(op.weight)
        else:
            kernel, x, out = PREDICT_STREAMS, op.streams[op.active], op.out
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
        for name, region in (regions | {"out": target}).items():
            values |= region.fields(name)
        sharing, how = self._how(op.streams[0])
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
        products = ops.Buffer(f"{heads} products of {padded}", heads * padded, op.x.logits_rows)
        source, target = self._input(op.x), self._output(products)
        for head, weight in enumerate(op.weights):
            matrix = self._matrices[id(weight)]
            x = replace(source, address=source.address + 4 * head * (op.x.width // heads))
            self._list.emit(
                self._float_products[matrix.weight.format.name],
                MATMUL,
                [source],
                [target],
                target.name,  # each head has columns of its own
                **matrix.fields() | x.fields("x"),
                out=target.address + 4 * head * padded,
                out_stride=target.stride,
                on_logits_rows=op.x.logits_rows,
            )
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
