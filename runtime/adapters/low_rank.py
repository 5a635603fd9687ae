"""LowRank: a change of one matrix as the product of two small ones, and several of them joined by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...quant.block import QTensor
from ...quant.formats import FORMATS

RANK_STEP = 8  # ranks are padded to a multiple, since kernels read several columns at once


@dataclass(frozen=True)
class LowRank:
    """ΔW = up @ down, and a `bias` of the product or None.

    float32: `down` [rank, inputs], `up` [outputs, rank], `bias` [outputs]. Those of the experts of a layer
    have a first dimension of experts, and no bias.
    """

    down: np.ndarray
    up: np.ndarray
    bias: np.ndarray | None = None

    @property
    def rank(self) -> int:
        return self.down.shape[-2]

    @property
    def delta(self) -> np.ndarray:
        """ΔW in float32."""
        return self.up @ self.down

    def scaled(self, scale: float) -> LowRank:
        """scale · ΔW, and as much of the bias."""
        if scale == 1.0:
            return self
        factor = np.float32(scale)
        bias = None if self.bias is None else self.bias * factor
        return LowRank(self.down, self.up * factor, bias)

    def factors(self, name: str, like: QTensor) -> tuple[QTensor, QTensor]:
        """`down` and `up` as matrices beside the matrix `like`: in F32 next to floats, else in F16.

        In F16 both factors of a rank get the same largest value, so that neither leaves the type's range;
        where their product is too large even for that, they stay in F32.
        """
        down, up = self.down, self.up
        padding = -self.rank % RANK_STEP
        if padding:
            down = np.concatenate([down, np.zeros((padding, down.shape[1]), np.float32)])
            up = np.concatenate([up, np.zeros((len(up), padding), np.float32)], axis=1)
        exact = _tensor(f"{name} (down)", "F32", down), _tensor(f"{name} (up)", "F32", up)
        if like.format.is_float:
            return exact
        heights, widths = np.abs(down).max(axis=1), np.abs(up).max(axis=0)
        used = (heights > 0) & (widths > 0)
        if (heights * widths.astype(np.float64)).max() > float(np.finfo(np.float16).max) ** 2:
            return exact
        balance = np.sqrt(np.divide(widths, heights, out=np.ones_like(widths), where=used))
        down, up = down * np.where(used, balance, 0)[:, None], up / balance
        return (
            _tensor(f"{name} (down)", "F16", down.astype(np.float16)),
            _tensor(f"{name} (up)", "F16", up.astype(np.float16)),
        )

    def of_experts(
        self, name: str, like: Sequence[QTensor]
    ) -> tuple[tuple[QTensor, ...], tuple[QTensor, ...]]:
        """The factors of every expert, beside its matrix of `like`."""
        each = (LowRank(down, up) for down, up in zip(self.down, self.up, strict=True))
        factors = [one.factors(f"{name} {e}", like[e]) for e, one in enumerate(each)]
        return tuple(down for down, _ in factors), tuple(up for _, up in factors)


def joined(changes: Sequence[LowRank]) -> LowRank:
    """The sum of several changes of one matrix: their ranks side by side."""
    if len(changes) == 1:
        return changes[0]
    biases = [change.bias for change in changes if change.bias is not None]
    return LowRank(
        np.concatenate([change.down for change in changes], axis=-2),
        np.concatenate([change.up for change in changes], axis=-1),
        np.stack(biases).sum(axis=0, dtype=np.float32) if biases else None,
    )


def _tensor(name: str, kind: str, values: np.ndarray) -> QTensor:
    values = np.ascontiguousarray(values)
    return QTensor(name, FORMATS[kind], values.shape, values.view(np.uint8))
