"""The gated delta rule over the rows of any sequences: see `ops.DeltaRule`; `delta_prefill.py` for a prompt.

Yang et al. 2024, "Gated Delta Networks".
"""

from __future__ import annotations

from ...abi.arguments import KernelArguments, Region
from ...compile.stage import device, registers, static
from ...ptx import (
    block_x,
    block_y,
    div_f32,
    div_u32,
    exp2,
    load_constant,
    load_float,
    load_int,
    shift_right,
    sqrt,
    store_float,
    thread,
)
from ..common.common import begin, sigmoid, warp_sum
from .state import LOG2_E, SequenceStates, load_spread, softplus, state_of

WARPS = R = PARTS = TILED = 0  # constants: see `delta_rule`


class DeltaArguments(KernelArguments):
    """What `delta_rule` takes."""

    qkv: Region  # float32 [rows, 2 · groups · key_dim + heads · head_dim]: q, k and v of each row
    beta: Region  # float32 [rows, heads], before the sigmoid
    step: Region  # float32 [rows, heads]
    out: Region  # float32 [rows, heads · head_dim]
    a: int  # float32 [heads], negative
    step_bias: int  # float32 [heads]
    eps: float  # of the L2 norms of q and k
    groups: int  # heads of a group share q and k
    heads: int
    head_dim: int
    key_dim: int
    inverse_root: float  # 1 / sqrt(key_dim)
    state: SequenceStates  # states: float32 [heads, key_dim, head_dim]
    rows: int


@device
def store_state(of_head, place: registers(R), state: registers((R, PARTS)), lane, head_dim, size):
    """Store the R columns, numbers `place`, of a head's state [size, head_dim]."""
    for r in static(R):
        for s in static(PARTS):
            if lane + 32 * s < size:
                store_float(of_head + 4 * ((lane + 32 * s) * head_dim + place[r]), state[r, s])


def delta_rule(args: DeltaArguments) -> None:
    """S = g · S; S = S + k ⊗ (beta · (v - k @ S)); y = q @ S, with g = exp(a · softplus(step + bias)).

    q and k are L2-normalised, q also divided by sqrt(key_dim).

    Grid: (head_dim / (WARPS · R), heads), of 32 · WARPS threads. A warp walks through the rows of the step
    and keeps R columns of a head's state [key_dim, head_dim] in registers, a lane every 32nd number of each;
    it stores them when the next row belongs to another sequence.

    Constants:
        WARPS  of a block
        R      columns of the state that a warp takes
        PARTS  numbers of a column of the state in a lane, key_dim / 32
        TILED  head h has the q and k of group h % groups; otherwise of group h / (heads / groups)
    """
    begin()
    head_dim, size = args.head_dim, args.key_dim
    lane = thread() & 31
    head = block_y()
    first = (block_x() * WARPS + shift_right(thread(), 5)) * R
    if TILED:
        group = head - div_u32(head, args.groups) * args.groups
    else:
        group = div_u32(head, div_u32(args.heads, args.groups))
    if first < head_dim:
        log_decay = load_constant(args.a + 4 * head) * LOG2_E
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
            row = args.qkv.address + t * args.qkv.stride
            raw_step = load_float(args.step.address + t * args.step.stride + 4 * head)
            strength = load_float(args.beta.address + t * args.beta.stride + 4 * head)
            q = registers(PARTS)
            k = registers(PARTS)
            v = registers(R)
            for s in static(PARTS):
                q[s] = load_spread(row + 4 * group * size, lane, s, size)
                k[s] = load_spread(row + 4 * (args.groups + group) * size, lane, s, size)
            for r in static(R):
                v[r] = load_float(row + 4 * (2 * args.groups * size + head * head_dim + place[r]))
            sequence = load_int(args.state.sequences + 4 * t)
            if sequence != current:
                if current >= 0:
                    store_state(of_head, *place[()], *state[()], lane, head_dim, size)
                current = sequence
                of_head = state_of(args.state, current) + 4 * head * size * head_dim
                for r in static(R):
                    for s in static(PARTS):
                        state[r, s] = 0.0
                        if load_int(args.state.positions + 4 * t) > 0:
                            if lane + 32 * s < size:
                                state[r, s] = load_float(
                                    of_head + 4 * ((lane + 32 * s) * head_dim + place[r])
                                )
            of_q = 0.0
            of_k = 0.0
            for s in static(PARTS):
                of_q = of_q + q[s] * q[s]
                of_k = of_k + k[s] * k[s]
            of_q = div_f32(args.inverse_root, sqrt(warp_sum(of_q) + args.eps))
            of_k = div_f32(1.0, sqrt(warp_sum(of_k) + args.eps))
            for s in static(PARTS):
                q[s] = q[s] * of_q
                k[s] = k[s] * of_k
            decay = exp2(log_decay * softplus(raw_step + bias))
            strength = sigmoid(strength)
            for r in static(R):
                total = 0.0
                for s in static(PARTS):
                    state[r, s] = decay * state[r, s]
                    total = total + k[s] * state[r, s]
                new = strength * (v[r] - warp_sum(total))
                total = 0.0
                for s in static(PARTS):
                    state[r, s] = state[r, s] + k[s] * new
                    total = total + q[s] * state[r, s]
                total = warp_sum(total)
                if lane == 0:
                    store_float(
                        args.out.address + t * args.out.stride + 4 * (head * head_dim + place[r]), total
                    )
        store_state(of_head, *place[()], *state[()], lane, head_dim, size)
