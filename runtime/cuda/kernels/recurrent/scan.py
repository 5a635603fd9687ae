"""Mamba-2's selective scan over the rows of any sequences: see `ops.StateScan`; `scan_prefill.py` for a
prompt.

Dao and Gu 2024, "Transformers are SSMs" (Mamba-2).
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
    block_x,
    block_y,
    div_u32,
    exp2,
    load_constant,
    load_float,
    load_int,
    shift_right,
    store_float,
    thread,
)
from ..common.common import begin, warp_sum
from .state import LOG2_E, SequenceStates, load_spread, softplus, state_of

WARPS = R = PARTS = 0  # constants: see `state_scan`


class ScanArguments(KernelArguments):
    """What `state_scan` takes."""

    xbc: Region  # float32 [rows, heads · head_dim + 2 · groups · state_size]: x, B and C of each row
    step: Region  # float32 [rows, heads]
    out: Region  # float32 [rows, heads · head_dim]
    a: int  # float32 [heads], negative
    skip: int  # float32 [heads]: D of the paper
    step_bias: int  # float32 [heads]
    step_scale: float
    groups: int  # heads of a group share B and C
    heads: int
    head_dim: int
    state_size: int
    state: SequenceStates  # states: float32 [heads, head_dim, state_size]
    rows: int


@device
def store_state(of_head, place: registers(R), state: registers((R, PARTS)), lane, size):
    """Store the R rows, numbers `place`, of a head's state [head_dim, size]."""
    for r in static(R):
        for s in static(PARTS):
            if lane + 32 * s < size:
                store_float(of_head + 4 * (place[r] * size + lane + 32 * s), state[r, s])


def state_scan(args: ScanArguments) -> None:
    """h = exp(a · dt) · h + dt · x ⊗ B and y = h @ C + skip · x, with dt = softplus(step_scale · step +
    bias).

    Grid: (head_dim / (WARPS · R), heads), of 32 · WARPS threads. A warp walks through the rows of the step
    and keeps R rows of a head's state [head_dim, state_size] in registers, a lane every 32nd number of each;
    it stores them when the next row belongs to another sequence.

    Constants:
        WARPS  of a block
        R      rows of the state that a warp takes
        PARTS  numbers of a row of the state in a lane, state_size / 32
    """
    begin()
    head_dim, size = args.head_dim, args.state_size
    lane = thread() & 31
    head = block_y()
    first = (block_x() * WARPS + shift_right(thread(), 5)) * R
    group = div_u32(head, div_u32(args.heads, args.groups))
    if first < head_dim:
        log_decay = load_constant(args.a + 4 * head) * LOG2_E
        skip = load_constant(args.skip + 4 * head)
        bias = load_constant(args.step_bias + 4 * head)
        state = registers((R, PARTS), 0.0)
        place = registers(R)
        for r in static(R):
            place[r] = first + r
            if first + r >= head_dim:
                place[r] = head_dim - 1
        current = -1
        of_head = args.state.states.address
        for t in range(args.rows):
            row = args.xbc.address + t * args.xbc.stride
            raw_step = load_float(args.step.address + t * args.step.stride + 4 * head)
            b = registers(PARTS)
            c = registers(PARTS)
            x = registers(R)
            for s in static(PARTS):
                b[s] = load_spread(row + 4 * (args.heads * head_dim + group * size), lane, s, size)
                c[s] = load_spread(
                    row + 4 * (args.heads * head_dim + (args.groups + group) * size), lane, s, size
                )
            for r in static(R):
                x[r] = load_float(row + 4 * (head * head_dim + place[r]))
            sequence = load_int(args.state.sequences + 4 * t)
            if sequence != current:
                if current >= 0:
                    store_state(of_head, *place[()], *state[()], lane, size)
                current = sequence
                of_head = state_of(args.state, current) + 4 * head * head_dim * size
                for r in static(R):
                    for s in static(PARTS):
                        state[r, s] = 0.0
                        if load_int(args.state.positions + 4 * t) > 0:
                            state[r, s] = load_spread(of_head + 4 * place[r] * size, lane, s, size)
            dt = softplus(raw_step * args.step_scale + bias)
            decay = exp2(log_decay * dt)
            for r in static(R):
                total = 0.0
                for s in static(PARTS):
                    state[r, s] = decay * state[r, s] + dt * x[r] * b[s]
                    total = total + state[r, s] * c[s]
                total = warp_sum(total)
                if lane == 0:
                    store_float(
                        args.out.address + t * args.out.stride + 4 * (head * head_dim + place[r]),
                        total + skip * x[r],
                    )
        store_state(of_head, *place[()], *state[()], lane, size)
