"""Lowering of recurrent ops; the same for prefill and decode."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....quant.jit.kernel import CpuKernel
from ... import ops
from ..abi import sizes
from ..abi.instructions import OTHER
from ..abi.records import RECURRENT
from ..kernels import CAUSAL_CONV, DELTA_RULE, STATE_SCAN
from .base import BaseLowering

Recurrent = ops.CausalConv | ops.DeltaRule | ops.StateScan


class RecurrentLowering(BaseLowering):
    """Lowers CausalConv, DeltaRule and StateScan.

    Their states are the arrays of `MachineConfig.states`; threads partition channels or heads.
    """

    def _recurrent(self, op: Recurrent) -> None:
        """Append the kernel of a recurrent op."""
        vector = self._arena.vector
        match op:
            case ops.CausalConv():
                weight, stride = self._arena.matrix(np.ascontiguousarray(op.weight.T))
                self._append_recurrent(
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
                scratch = self._arena.per_thread(
                    f"delta {op.key_dim} {op.head_dim}", sizes.delta_scratch_bytes(op.key_dim, op.head_dim)
                )
                self._append_recurrent(
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
                    scratch_stride=scratch.thread_stride,
                )
            case ops.StateScan():
                self._append_recurrent(
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

    def _append_recurrent(
        self, kernel: CpuKernel, op: Recurrent, inputs: dict[str, ops.Buffer], **values: Any
    ) -> None:
        """Append the kernel with the op's input matrices (by field name), output and state."""
        regions = {name: self._input(buffer) for name, buffer in inputs.items()}
        for name, region in regions.items():
            values |= region.fields(name)
        out, state = self._output(op.out), self._config.states[op.state]
        values |= {"out": out.address, "out_stride": out.stride}
        values |= {"state": state.ctypes.data, "state_bytes": state.strides[0]}
        self._list.append(kernel, RECURRENT, regions.values(), [out], OTHER, **values)
