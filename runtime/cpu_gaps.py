"""What the CPU machine has no kernels for yet."""

from __future__ import annotations

from . import ops

MISSING = ops.HeadMatMul | ops.Sparsify | ops.MatchMagnitude | ops.PredictStreams | ops.CorrectStreams


def cpu_gaps(program: ops.Program) -> list[str]:
    """The ops and fields of a program that the CPU machine cannot run, each once, for an error message."""
    gaps = [gap for op in program.ops for gap in _gaps(op)]
    if sum(isinstance(op, ops.Embed) for op in program.ops) > 1:
        gaps.append("a second Embed")  # whose table may have fewer tokens than the model
    return list(dict.fromkeys(gaps))


def _gaps(op: ops.Op) -> list[str]:
    if isinstance(op, MISSING):
        return [type(op).__name__]
    match op:
        case ops.Route() if op.expert_scales is not None or (op.groups > 1 and op.group_best != 2):
            return ["Route with scales of experts, or groups by their best"]
        case ops.Attend() if op.v == op.k:
            return ["Attend with values in keys"]
        case ops.Attend() if not op.append:
            return ["Attend to another layer's cache"]
        case ops.RoPE() if op.start:
            return ["RoPE within heads"]
        case ops.RMSNorm() if op.groups * len(op.weight) < op.x.width:
            return ["RMSNorm of a part of a row"]
        case ops.GatedActivation() if op.up.width != op.gate.width:
            return ["GatedActivation with a part of a row"]
        case ops.Activation() if op.kind == "tanh":
            return ["Activation with tanh"]
        case ops.Add() if op.keep != 1.0:
            return ["Add that scales what it adds to"]
    return []
