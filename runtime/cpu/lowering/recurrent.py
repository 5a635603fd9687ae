"""The instructions of recurrent ops, the same for many rows and for one: threads share channels or heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....quant.jit.kernel import CpuKernel
from ... import ops
from ..abi import sizes
from ..abi.instructions import OTHER
from ..abi.records import RECUR
from ..kernels import CAUSAL_CONV, DELTA_RULE, STATE_SCAN
from .base import RowsLowering

Recurrent = ops.CausalConv | ops.DeltaRule | ops.StateScan


class RecurrentLowering(RowsLowering):
    """States are arrays that outlive the machine's steps, and are nobody's region."""

    def _recur(self, op: Recurrent) -> None:
        vector = self._memory.vector
        match op:
            case ops.CausalConv():
                weight, stride = self._memory.matrix(np.ascontiguousarray(op.weight.T))
                self._emit_recurrent(
                    CAUSAL_CONV,
                    op,
                    {"x": op.x},
                    channels=op.weight.shape[0],
                    taps=op.weight.shape[1],
                    weight=weight,
                    weight_stride=stride,
                    bias=0 if op.bias is None else vector(op.bias),
                    silu=op.silu,
                )
            case ops.DeltaRule():
                scratch = self._memory.private(
                    f"delta {op.key_dim} {op.head_dim}", sizes.delta_scratch_bytes(op.key_dim, op.head_dim)
                )
                self._emit_recurrent(
                    DELTA_RULE,
                    op,
                    {"x": op.qkv, "step": op.step, "beta": op.beta},
                    groups=op.groups,
                    heads=op.heads,
                    head_dim=op.head_dim,
                    size=op.key_dim,
                    tiled=op.tiled,
                    a=vector(op.a),
                    step_bias=vector(op.step_bias),
                    eps=op.eps,
                    scratch=scratch.address,
                    scratch_stride=scratch.private,
                )
            case ops.StateScan():
                self._emit_recurrent(
                    STATE_SCAN,
                    op,
                    {"x": op.xbc, "step": op.step},
                    groups=op.groups,
                    heads=op.heads,
                    head_dim=op.head_dim,
                    size=op.state_size,
                    a=vector(op.a),
                    skip=vector(op.skip),
                    step_bias=vector(op.step_bias),
                    step_scale=op.step_scale,
                )

    def _emit_recurrent(
        self, kernel: CpuKernel, op: Recurrent, inputs: dict[str, ops.Buffer], **values: Any
    ) -> None:
        regions = {name: self._input(buffer) for name, buffer in inputs.items()}
        for name, region in regions.items():
            values |= region.fields(name)
        out, state = self._output(op.out), self._layout.states[op.state]
        values |= {"out": out.address, "out_stride": out.stride}
        values |= {"state": state.ctypes.data, "state_bytes": state.strides[0]}
        self._list.emit(kernel, RECUR, regions.values(), [out], OTHER, **values)
