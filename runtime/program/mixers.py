"""The recurrent part of a layer as ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..config.recurrence import Recurrence
from ..ops import GatedActivation, Op, RMSNorm
from ..ops.buffer import Buffer
from ..ops.recurrent import CausalConv, DeltaRule, StateScan
from ..weights.binding import Weights

# stem of a tensor, what it reads, what it writes → the product
Linear = Callable[[str, Buffer, Buffer], Op]


@dataclass(frozen=True)
class Mixer:
    """Where a layer's recurrence works; the widths are 0 for a model that has none."""

    mix: Buffer  # what the convolution goes over
    z: Buffer  # the gate
    step: Buffer
    beta: Buffer
    y: Buffer  # what comes out

    @classmethod
    def of(cls, r: Recurrence | None) -> Mixer:
        heads = r.heads if r and r.kind != "conv" else 0
        inner = r.inner if r else 0
        return cls(
            mix=Buffer("mix", r.channels if r else 0),
            z=Buffer("z", inner),
            step=Buffer("step", heads),
            beta=Buffer("beta", heads if r and r.kind == "delta" else 0),
            y=Buffer("y", inner),
        )

    def buffers(self) -> list[Buffer]:
        return [self.mix, self.z, self.step, self.beta, self.y]

    def ops(
        self, r: Recurrence, i: int, n: Buffer, w: Weights, linear: Linear, state: int, eps: float
    ) -> list[Op]:
        """What layer `i` makes of `n`, up to `y`; its states are those from number `state` on."""
        mix, z, step, beta, y = self.buffers()
        stem = f"blk.{i}.ssm_"
        weight, bias = w.vector(f"{stem}conv1d.weight"), w.optional(f"{stem}conv1d.bias")
        if r.kind == "conv":
            return [
                linear("ssm_mix", n, mix),  # mix [rows, hidden]
                linear("ssm_x", n, y),  # y [rows, hidden]
                linear("ssm_z", n, z),  # z [rows, hidden]
                GatedActivation(mix, y, mix, "identity"),
                CausalConv(mix, mix, weight, bias, state),
                GatedActivation(z, mix, y, "identity"),
            ]
        of_z, *of_mix, of_step = r.part_scales
        grouped = r.groups * r.state_size
        sizes = (r.inner, grouped, grouped) if r.kind == "scan" else (r.channels, 0, 0)
        # A convolution's scaled inputs are its scaled weights.
        weight = weight * np.repeat(np.array(of_mix, np.float32), sizes)[:, None]
        ops: list[Op] = [
            linear("ssm_mix", n, mix),  # mix [rows, channels]
            linear("ssm_z", n, z),  # z [rows, inner]
            linear("ssm_step", n, step),  # step [rows, heads]
        ]
        a, step_bias = w.decay(f"{stem}a.weight"), w.vector(f"{stem}dt.bias")
        sizes = (r.groups, r.heads, r.state_size)
        if r.kind == "delta":
            ops += [
                linear("ssm_beta", n, beta),  # beta [rows, heads]
                CausalConv(mix, mix, weight, bias, state, silu=True),
                DeltaRule(mix, beta, step, y, a, step_bias, *sizes, state + 1, r.tiled),  # y [rows, inner]
            ]
        else:
            skip = w.vector(f"{stem}d.weight")
            ops += [
                CausalConv(mix, mix, weight, bias, state, silu=True),
                StateScan(mix, step, y, a, skip, step_bias, *sizes, state + 1, of_step),  # y [rows, inner]
            ]
        norm_weight = w.optional(f"{stem}norm.weight")
        gate = GatedActivation(z, y, y, "silu", of_z)
        if norm_weight is None:
            return [*ops, gate]
        groups = r.heads if r.kind == "delta" else r.groups
        norm = RMSNorm(y, y, norm_weight, eps, groups)
        return [*ops, norm, gate] if r.norm_first else [*ops, gate, norm]
