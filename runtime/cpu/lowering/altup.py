"""Lowering of AltUp, several residual streams; the same for prefill and decode."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from ....quant.jit.levels import LANES
from ... import ops
from ..abi.records import ALTUP
from ..arena import Region
from ..kernels import ALTUP_CORRECT, ALTUP_PREDICT
from .base import BaseLowering


class AltUpLowering(BaseLowering):
    """Lowers AltUpPredict and AltUpCorrect."""

    @abstractmethod
    def _pointwise_output(self, buffer: ops.Buffer) -> Region:
        """The region that the next pointwise instruction overwrites with a buffer."""

    @abstractmethod
    def _pointwise_partition(self, buffer: ops.Buffer) -> tuple[str, dict[str, Any]]:
        """How threads partition pointwise work on a buffer's rows, and the record fields that say so."""

    def _altup(self, op: ops.AltUpPredict | ops.AltUpCorrect) -> None:
        """Append ALTUP_PREDICT or ALTUP_CORRECT."""
        values: dict[str, Any] = {}
        if isinstance(op, ops.AltUpCorrect):
            kernel, x, out = ALTUP_CORRECT, op.x, op.x
            values["weight"] = self._arena.vector(op.weight)
        else:
            kernel, x, out = ALTUP_PREDICT, op.streams[op.active], op.out
        inputs = {"x": self._input(x), "coefficients": self._input(op.coefficients)}
        sources = [self._input(stream) for stream in op.streams]
        targets = [self._pointwise_output(stream) for stream in op.streams]
        target = self._pointwise_output(out)
        for name, region in (inputs | {"out": target}).items():
            values |= region.fields(name)
        scratch = self._arena.per_thread("streams", 4 * LANES * len(sources))
        partition, fields = self._pointwise_partition(op.streams[0])
        self._list.append(
            kernel,
            ALTUP,
            [*inputs.values(), *sources],
            [*targets, target],
            partition,
            streams=self._stream_table(sources, targets),
            n=len(sources),
            active=op.active,
            width=op.streams[0].width,
            scratch=scratch.address,
            scratch_stride=scratch.thread_stride,
            **values,
            **fields,
        )

    def _stream_table(self, sources: list[Region], targets: list[Region]) -> int:
        """Address of the int64 [streams, 6] table of the field `streams`."""
        table = np.array(
            [
                (s.address, s.stride, s.thread_stride, t.address, t.stride, t.thread_stride)
                for s, t in zip(sources, targets, strict=True)
            ],
            np.int64,
        )
        return self._arena.keep(table).ctypes.data
