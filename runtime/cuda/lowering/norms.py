"""Launches of norms, most of which are parts of the products around them."""

from __future__ import annotations

import numpy as np

from ... import ops
from .base import FEW, Coded, Launches


class NormLowering(Launches):
    def _rms_norm(self, i: int, op: ops.RMSNorm) -> None:
        if self._lazy(i, op):
            attached = self._coded.get(self._real(op.x).name + " normed")
            if attached is None or attached.norm is not op:
                attached = self._quantize_normed(op)
            self._wrote(op.out)
            self._coded[self._real(op.out).name] = attached
            return
        each = op.groups * len(op.weight) > op.x.width
        self._norm(op, None, mean=0, size=op.x.width // op.groups if each else len(op.weight), each=int(each))

    def _lazy(self, i: int, op: ops.RMSNorm) -> bool:
        """Whether a norm's result is only needed in 8 bits, and can be made without looking at the whole
        row.
        """
        few = self._n[op.x.wanted] <= FEW
        whole = op.groups == 1 and len(op.weight) == op.x.width and op.x.width % 32 == 0
        return few and whole and self._only_products(i, op.out)

    def _quantize_normed(self, op: ops.RMSNorm) -> Coded:
        x, coded = self._at(op.x), self._codes(op.out)
        partials = self._partials(op.out)
        blocks, weight = op.x.width // 32, self.memory.vector(op.weight)
        arguments = [x.address, x.stride, blocks, weight, coded, partials]
        what = self._kernel("quantize", "quantize", 128, NORMED=1, TOKENS=self._tokens(op.x))
        self._emit(what, (-(-blocks // 4), self._n[op.x.wanted]), arguments)
        return Coded(coded, partials, op)

    def _norm(
        self, op: ops.RMSNorm | ops.LayerNorm, bias: np.ndarray | None, mean: int, size: int, each: int
    ) -> None:
        x, out = self._at(op.x), self._at(op.out)
        arguments: list[int | float] = [x.address, x.stride, out.address, out.stride]
        arguments += [
            self.memory.vector(op.weight),
            0 if bias is None else self.memory.vector(bias),
            float(op.eps),
            size,
            1 / size,
            op.x.width,
        ]
        what = self._kernel(
            "pointwise", "norm", 256, MEAN=mean, BIAS=int(bias is not None), EACH=each, GROUPS=op.groups
        )
        self._emit(what, (op.groups, self._n[op.x.wanted]), arguments, 64)
        self._wrote(op.out)
