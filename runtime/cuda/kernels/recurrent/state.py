"""What all recurrent kernels share: the states of sequences, vectors spread over a warp, and softplus."""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device
from ...ptx import absolute, exp2, load_float, log2, maximum

LOG2_E = 1.4426950408889634


class SequenceStates(KernelArguments):
    """The states that a recurrent op keeps, and which of them the rows of a step go on with."""

    states: Region  # float32 [sequences, …]
    sequences: int  # int32 [rows]: the sequence of each row
    positions: int  # int32 [rows]; at position 0 a state begins with zeros, whatever is stored


@device
def state_of(state: SequenceStates, sequence):
    """The address of a sequence's state."""
    return state.states.address + sequence * state.states.stride


@device
def softplus(x):
    """ln(1 + e^x)."""
    e = exp2(absolute(x) * -1.4426950408889634)
    y = log2(1.0 + e) * 0.6931471805599453
    if e < 0.03125:  # 1 + e has too few bits of e: the Taylor series of ln(1 + e)
        y = e * (1.0 - e * (0.5 - e * (0.3333333333333333 - e * 0.25)))
    return maximum(x, 0.0) + y


@device
def load_spread(vector, lane, part, size):
    """Number lane + 32 · part of a float32 vector of that size; 0 behind its end."""
    value = 0.0
    if lane + 32 * part < size:
        value = load_float(vector + 4 * (lane + 32 * part))
    return value
