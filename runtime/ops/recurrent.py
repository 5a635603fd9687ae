"""The ops that go on where a sequence stopped: what they keep of it has one size, however long it is.

Each has its state in a layer of `Program.state_layers`, float32 of the shape given here for every
sequence. All zeros stand for a sequence that begins; a step's rows of a sequence are consecutive
positions, and where a prompt is cut makes no difference to a sequence's state.

`reference_scan.py` is the specification.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class CausalConv:
    """out[p] = Σ_j weight[:, j] · x[p - taps + 1 + j] + bias for each channel by itself, then SiLU if `silu`.

    `weight` is float32 [channels, taps], `bias` [channels] or None; before its first position a sequence
    has zeros. `out` may be `x`. State: [taps - 1, channels], the latest rows of x, oldest first.
    """

    x: Buffer
    out: Buffer
    weight: np.ndarray
    bias: np.ndarray | None
    state: int
    silu: bool = False


@dataclass(frozen=True, eq=False)
class DeltaRule:
    """Linear attention whose memory forgets, and replaces what it has under a key (gated delta rule).

    A row of `qkv` is `groups` queries, as many keys, both of `key_dim`, and `heads` values. Head h reads
    query and key h // (heads / groups), or with `tiled` h % groups. Both are divided by
    sqrt(Σ their squares + eps), and the query by sqrt(key_dim) as well. With
    β = sigmoid(beta) and d = exp(a · softplus(step + step_bias)), one of each a head, for every position

        S = d · S;  S += k ⊗ β · (v - k @ S);  out = q @ S

    `a` (below 0) and `step_bias` are float32 [heads]. State: S, [heads, key_dim, head_dim].
    (Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule")
    """

    qkv: Buffer
    beta: Buffer
    step: Buffer
    out: Buffer
    a: np.ndarray
    step_bias: np.ndarray
    groups: int
    heads: int
    key_dim: int
    state: int
    tiled: bool = False
    eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.out.width // self.heads


@dataclass(frozen=True, eq=False)
class StateScan:
    """Mamba-2's recurrence: a memory that decays, one factor a head and position, and takes in x under B.

    A row of `xbc` is `heads` x, then `groups` B and as many C, both of `state_size`; head h reads
    B and C h // (heads / groups). With t = softplus(step · step_scale + step_bias), one a head, for
    every position

        S = exp(a · t) · S + t · x ⊗ B;  out = S @ C + skip · x

    `a` (below 0), `skip` and `step_bias` are float32 [heads]. State: S, [heads, head_dim, state_size].
    (Dao, Gu 2024, "Transformers are SSMs")
    """

    xbc: Buffer
    step: Buffer
    out: Buffer
    a: np.ndarray
    skip: np.ndarray
    step_bias: np.ndarray
    groups: int
    heads: int
    state_size: int
    state: int
    step_scale: float = 1.0

    @property
    def head_dim(self) -> int:
        return self.out.width // self.heads


@dataclass(frozen=True)
class StateLayer:
    """What one recurrent op keeps of a sequence: float32 of this shape."""

    shape: tuple[int, ...]
