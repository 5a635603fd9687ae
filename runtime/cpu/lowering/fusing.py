"""Activations of the CPU kernels, and the fusing of gate product, up product and activation into one op."""

from __future__ import annotations

from ... import ops
from ...ops.fused import GATED_OPS, GatedMatMul, gated
from ..abi.records import GELU_TANH, IDENTITY, RELU2, SILU, TANH

# Values of the record field `gate` by the activation of an op: GATES for the epilogue of matrix products,
# ACTIVATIONS for the kernel GATED_ACTIVATION.
GATES = {"silu": SILU, "gelu_tanh": GELU_TANH}
ACTIVATIONS = GATES | {
    "relu2": RELU2,
    "identity": IDENTITY,
    "tanh": TANH,
}  # activations that GATED_ACTIVATION can apply


def fused(program: ops.Program) -> list[ops.Op | GatedMatMul]:
    """The program's ops, with adjacent gate product, up product and activation replaced by a GatedMatMul."""
    out: list[ops.Op | GatedMatMul] = []
    rest = list(program.ops)
    while rest:
        if product := gated(rest, GATES):
            out.append(product)
            del rest[:GATED_OPS]
        else:
            out.append(rest.pop(0))
    return out
