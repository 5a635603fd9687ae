"""The instruction set: the ops that a forward pass is made of.

A step runs the ops of a Program in order over *rows*; a row is one (token, sequence, position). Buffers are
float32 matrices with one line a row. After `SelectRows` only the rows whose logits are asked for go on, and
buffers marked `logits_rows` have one line for each of those.

The package `reference` is the specification: it has a NumPy function for every op.
"""

from .activations import Activation, GatedActivation, GaussianTopK, SigmoidGate
from .altup import AltUpCorrect, AltUpPredict, MatchMagnitude
from .attention import Attend, RoPE, ScaleQueries
from .buffer import Buffer
from .dense import AddPositions, Embed, HeadMatMul, MatMul
from .moe import LowRankExperts, MoE, Route
from .norm import LayerNorm, RMSNorm
from .parallel import AllReduce
from .pointwise import Add, SelectRows, SoftCap
from .program import CacheLayer, Op, Program
from .recurrent import CausalConv, DeltaRule, StateLayer, StateScan

__all__ = [
    "Activation",
    "Add",
    "AddPositions",
    "AllReduce",
    "AltUpCorrect",
    "AltUpPredict",
    "Attend",
    "Buffer",
    "CacheLayer",
    "CausalConv",
    "DeltaRule",
    "Embed",
    "GatedActivation",
    "GaussianTopK",
    "HeadMatMul",
    "LayerNorm",
    "LowRankExperts",
    "MatMul",
    "MatchMagnitude",
    "MoE",
    "Op",
    "Program",
    "RMSNorm",
    "RoPE",
    "Route",
    "ScaleQueries",
    "SelectRows",
    "SigmoidGate",
    "SoftCap",
    "StateLayer",
    "StateScan",
]
