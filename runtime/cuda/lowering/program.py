"""From a program to the launches of a step.

All inputs of a step are in GPU memory at fixed addresses, so that the launches of a shape of step can be
captured in a CUDA graph once and run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ... import ops
from ...engine.observing import Tap
from ...ops.fused import GatedMatMul
from ..abi.arguments import Region
from ..driver.launch import Launch
from .cards import SumLowering
from .fusing import CudaOp, JoinedMatMul, PreparedAttend, sources, writes
from .gather import RowLowering
from .mla import MLALowering
from .moe import ExpertLowering
from .recurrent import RecurrentLowering


@dataclass(frozen=True)
class TappedRows:
    """The `n_rows` rows that a tap asks for: they are at `region` behind the first `n_launches` launches."""

    tap: Tap
    n_launches: int
    region: Region
    n_rows: int


class Lowering(SumLowering, ExpertLowering, MLALowering, RecurrentLowering, RowLowering):
    """Turns the fused ops of a program into launches."""

    def launches(
        self, n_rows: int, n_logits: int, all_logits: bool, one_prompt: bool = False
    ) -> list[Launch]:
        """The launches of a step of `n_rows` rows, `n_logits` of which get logits.

        `all_logits`: these are all rows, in order. `one_prompt`: the rows are consecutive positions of one
        sequence.
        """
        self._begin(n_rows, n_logits, all_logits, one_prompt)
        for i, op in enumerate(self.cuda_ops):
            if self._rows_of(op) > 0:
                self._lower(i, op)
        return self._launches

    def boundary_out(self) -> list[Region]:
        """Where the rows of the program's `boundary_out` buffers are behind the launches made last."""
        return [self._at(b) for b in self.program.boundary_out]

    def observed(
        self,
        n_rows: int,
        n_logits: int,
        all_logits: bool,
        one_prompt: bool,
        taps: Sequence[Tap] = (),
        first: int = 0,
    ) -> tuple[list[Launch], list[TappedRows]]:
        """The launches of a step, as `launches` has them, but from op number `first` of the program on, and
        between which of them the rows of the taps are to be copied.

        What is prepared for attention is computed by launches of its own, so that queries and keys are in
        their buffers.
        """
        self._begin(n_rows, n_logits, all_logits, one_prompt)
        self._together = self._host_follows = False
        starts, copies = sources(self.cuda_ops, self.program), list[TappedRows]()

        def copy(at: int) -> None:
            for tap in taps:
                if tap.at == at:
                    n = self._n_rows[tap.buffer.logits_rows]
                    copies.append(TappedRows(tap, len(self._launches), self._at(tap.buffer), n))

        for i, (op, start) in enumerate(zip(self.cuda_ops, starts, strict=False)):
            if start < first:
                continue
            if not isinstance(op, PreparedAttend):
                copy(start)
                if self._rows_of(op) > 0:
                    self._lower(i, op)
                continue
            for at, part in enumerate(self.program.ops[start : starts[i + 1]], start):
                copy(at)
                self._lower(i, part)
        copy(len(self.program.ops))
        return self._launches, copies

    def _rows_of(self, op: CudaOp) -> int:
        """The rows of this step that an op computes."""
        if isinstance(op, PreparedAttend):
            return self._n_rows[False]
        out = writes(op)[0]
        return self._n_rows[out.logits_rows]

    def _lower(self, i: int, op: CudaOp) -> None:
        match op:
            case ops.Embed():
                self._embed(op)
            case ops.RMSNorm():
                self._rms_norm(i, op)
            case ops.LayerNorm():
                self._norm(op, op.bias, mean=1, size=op.x.width // op.groups, each=1)
            case JoinedMatMul():
                self._matmul(i, op)
            case GatedMatMul():
                self._gated_matmul(i, op)
            case PreparedAttend():
                self._prepared_attend(i, op)
            case ops.Attend():
                self._append(op)
                self._attend(i, op)
            case ops.AllReduce():
                self._all_reduce(i, op)
            case ops.RoPE():
                self._rope(op)
            case ops.SelectRows():
                self._select(op)
            case ops.AddPositions():
                self._add_positions(op)
            case ops.Route():
                self._route(op)
            case ops.MoE():
                self._moe(op)
            case ops.HeadMatMul():
                self._multiply_heads(op)
            case ops.CausalConv():
                self._causal_conv(op)
            case ops.DeltaRule():
                self._delta_rule(op)
            case ops.StateScan():
                self._state_scan(op)
            case ops.GaussianTopK():
                self._sparsify(op)
            case ops.MatchMagnitude():
                self._match_magnitude(op)
            case ops.AltUpPredict():
                self._predict_streams(op)
            case ops.AltUpCorrect():
                self._correct_streams(op)
            case _:
                self._pointwise(op)
