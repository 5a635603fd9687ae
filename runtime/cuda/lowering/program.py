"""From a program to the launches of a step.

All inputs of a step are in GPU memory at fixed addresses, so that the launches of a shape of step can be
captured in a CUDA graph once and run again.
"""

from __future__ import annotations

from ... import ops
from ...ops.fused import GatedMatMul
from ..driver.launch import Launch
from .fusing import CudaOp, JoinedMatMul, PreparedAttend, writes
from .gather import RowLowering
from .mla import MLALowering
from .moe import ExpertLowering
from .recurrent import RecurrentLowering


class Lowering(ExpertLowering, MLALowering, RecurrentLowering, RowLowering):
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
