"""Launches of sums over several cards."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ... import ops
from ..abi.arguments import Region
from ..kernels.common import all_reduce
from ..kernels.common.all_reduce import FLAG_BYTES, FewRowsArguments, ManyRowsArguments
from ..kernels.common.sums import SumArguments
from .base import DECODE_ROWS, QuantizedRows
from .fusing import JoinedMatMul
from .matmul.decode import SentSum
from .matmul.matmul import MatMulLowering

SUM_BLOCKS = 1  # of `all_reduce_many`, for each multiprocessor


@dataclass
class CardGroup:
    """The cards that run the parts of one program. `shared`: they are one card, for a test.

    `members` are their lowerings in the order of the cards; all must be there when the first sum is lowered.
    """

    n: int
    shared: bool = False
    members: list[SumLowering] = field(default_factory=list)


class SumLowering(MatMulLowering):
    """Launches of AllReduce. `group` and `rank` are those of the launch builder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tables: dict[str, int] = {}
        self._sent = False  # whether the product in front has sent its result for the next sum
        if self.group is not None:
            self.room()
            self.flags()
            self.errors()
            self.report = self.device.pinned(64).view(np.int32)  # the host's word for errors
            self.group.members.append(self)

    def room(self) -> Region:
        """Where the other cards put values of sums of few rows: see `all_reduce_few`."""
        assert self.group
        size = 2 * self.group.n * DECODE_ROWS * self._room_width
        return self.memory.rows("room for sums", 1, 8 * size)

    def flags(self) -> Region:
        """The flags of sums of many rows: see `all_reduce_many`."""
        assert self.group
        return self.memory.rows("flags of sums", 1, FLAG_BYTES * (2 * self.group.n + 1))

    def errors(self) -> Region:
        """A word that is not 0 when this card has waited for another one in vain."""
        return self.memory.rows("errors of sums", 1, 4)

    @property
    def _room_width(self) -> int:
        return max((op.x.width for op in self.program.ops if isinstance(op, ops.AllReduce)), default=0)

    def _table(self, name: str, regions: list[Region]) -> int:
        """The address of a table of addresses, one for each card."""
        if name not in self._tables:
            addresses = [region.address for region in regions]
            self._tables[name] = self.memory.array(np.array(addresses, np.int64))
        return self._tables[name]

    def _all_reduce(self, i: int, op: ops.AllReduce) -> None:
        group, index = self.group, self.n_sums
        assert group
        self.n_sums += 1
        n = self._n_rows[op.x.logits_rows]
        if n > DECODE_ROWS:
            self._sum_many(op, n, index)
            self._invalidate(op.x)
            return
        norm = self._norm_behind(i, op.x) if op.x.width % 32 == 0 else None
        codes = self._quantized_address(norm.out) if norm else 0
        partials = self._partials(norm.out) if norm else 0
        arguments = FewRowsArguments(
            x=self._at(op.x),
            width=op.x.width,
            sums=self._sum_arguments(index),
            codes=codes,
            norm_weight=self.memory.vector(norm.weight) if norm else 0,
            out_partials=partials,
            errors=self.errors().address,
            report=self.report.ctypes.data,
        )
        constants = {"EMIT": 2 if norm else 0, "TOKENS": self._padded_rows(op.x), "ROWS": DECODE_ROWS}
        constants |= {"CARDS": group.n, "SHARED": int(group.shared), "SENT": int(self._sent)}
        self._sent = False
        kernel = self._kernel(all_reduce.all_reduce_few, 128, **constants)
        self._emit(kernel, (-(-op.x.width // 128), n), arguments, 0, str(op.x.width))
        self._invalidate(op.x)
        if norm:
            self._quantized[self._resolve(norm.x).name + " normed"] = QuantizedRows(codes, partials, norm)

    def _sum_arguments(self, index: int) -> SumArguments:
        assert self.group
        return SumArguments(
            number=self.inputs.sums,
            index=index,
            rank=self.rank,
            rooms=self._table("room", [member.room() for member in self.group.members]),
            width=self._room_width,
        )

    def _sum_behind(self, i: int, op: JoinedMatMul) -> SentSum | None:
        """What a product sends for the sum that follows at once. The float32 result is not stored then."""
        following = self.cuda_ops[i + 1] if i + 1 < len(self.cuda_ops) else None
        if self.group is None or not isinstance(following, ops.AllReduce) or op.outs != (following.x,):
            return None
        self._sent = True
        constants = {"CARDS": self.group.n, "ROWS": DECODE_ROWS, "STORE": 0}
        return SentSum(constants, self._sum_arguments(self.n_sums))

    def _sum_many(self, op: ops.AllReduce, n: int, index: int) -> None:
        group, x = self.group, self._resolve(op.x)
        assert group
        arguments = ManyRowsArguments(
            xs=self._table(f"x {x.name}", [member.region(x) for member in group.members]),
            stride=self.region(x).stride,
            width=x.width,
            rows=n,
            rank=self.rank,
            number=self.inputs.sums,
            index=index,
            flags=self._table("flags", [member.flags() for member in group.members]),
            errors=self.errors().address,
            report=self.report.ctypes.data,
        )
        constants = {"CARDS": group.n, "SHARED": int(group.shared)}
        kernel = self._kernel(all_reduce.all_reduce_many, 512, **constants)
        blocks = 8 if group.shared else SUM_BLOCKS * self.device.multiprocessors
        self._emit(kernel, (blocks,), arguments, 0, f"{n}x{x.width}")
