"""The recurrent ops. They carry a state of fixed size from one position of a sequence to the next.

The state of each op is a layer of `Program.state_layers`: a float32 array a sequence, of the shape given
below. The state in front of the first position is zero. The rows of a sequence in a step are consecutive
positions; the chunks in which a prompt is processed make no difference to its state.

`reference/recurrent.py` is the specification.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .buffer import Buffer


@dataclass(frozen=True, eq=False)
class CausalConv:
    """Depthwise convolution: out[p] = Σ_j weight[:, j] · x[p - taps + 1 + j] + bias, then SiLU if `silu`.

    `weight` is float32 [channels, taps], `bias` float32 [channels] or None; x is zero before the first
    position. `out` may be `x`. State: [taps - 1, channels], the latest rows of x, oldest first.
    """

    x: Buffer
    out: Buffer
    weight: np.ndarray
    bias: np.ndarray | None
    state: int
    silu: bool = False


@dataclass(frozen=True, eq=False)
class DeltaRule:
    """The gated delta rule: linear attention whose state decays, and whose value under a key is replaced.

    A row of `qkv` is `groups` queries and `groups` keys of `key_dim`, and `heads` values of `head_dim`. Head
    h reads query and key h // (heads / groups), or with `tiled` h % groups. Both are divided by sqrt(Σ their
    squares + eps), and the query by sqrt(key_dim) as well. With β = sigmoid(beta) and d = exp(a ·
    softplus(step + step_bias)), one of each a head, for every position

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
    """The selective scan of Mamba-2: a state that decays by one factor a head and position, plus x ⊗ B.

    A row of `xbc` is `heads` x of `head_dim`, then `groups` B and `groups` C of `state_size`; head h reads
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
    """The shape of one recurrent op's state of a sequence, in float32."""

    shape: tuple[int, ...]
