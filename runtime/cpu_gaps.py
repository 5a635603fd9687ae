"""What the CPU machine has no kernels for yet: it would skip such an op, or overlook such a field."""

from __future__ import annotations

from . import ops


def cpu_gaps(program: ops.Program) -> list[str]:
    """The ops and fields of a program that the CPU machine cannot run, each once, for an error message."""
    return list(dict.fromkeys(gap for op in program.ops for gap in _gaps(op)))


def _gaps(op: ops.Op) -> list[str]:
    match op:
        case ops.CausalConv() | ops.DeltaRule() | ops.StateScan():
            return [type(op).__name__]
        case ops.RMSNorm() if len(op.weight) * op.groups != op.x.width:
            return ["RMSNorm of parts with weights of their own"]
        case ops.MoE() if not op.gate:
            return ["MoE without gates"]
        case ops.GatedActivation() if op.scale != 1.0:
            return ["GatedActivation with a scale"]
        case ops.GatedActivation() | ops.Activation() | ops.MoE() if op.kind in ("relu2", "identity"):
            return [f"the activation {op.kind}"]
    return []
