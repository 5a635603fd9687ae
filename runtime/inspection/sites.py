"""Where in a program the things lie that an inspection shows: streams, attention, routers, states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from ..engine.observing import Tap
from ..ops import (
    Add,
    Attend,
    Buffer,
    CausalConv,
    DeltaRule,
    MatMul,
    MoE,
    Op,
    Program,
    StateScan,
)


@dataclass(frozen=True)
class AttentionSite:
    """An attention op, and the taps of its queries and of the keys that it reads, as they enter the cache."""

    op: Attend
    queries: Tap
    keys: Tap


@dataclass(frozen=True)
class RouterSite:
    """The taps of the experts that a router selects, and of their weights."""

    experts: Tap
    weights: Tap
    n_experts: int


@dataclass(frozen=True)
class Sites:
    """The sites of a program, by layer of the model.

    `residual[i]` are the taps of the residual streams that enter layer i, behind the last layer those that
    the output norm and head read: one stream, or several with AltUp. `head_at` is the first op of the head.
    """

    residual: tuple[tuple[Tap, ...], ...]
    head_at: int
    attention: dict[int, AttentionSite]
    routers: dict[int, RouterSite]
    states: dict[int, tuple[int, ...]]  # indices of `Program.state_layers`

    @property
    def n_layers(self) -> int:
        return len(self.residual) - 1

    @classmethod
    def of(cls, program: Program) -> Sites:
        """The sites of the program of a model that writes text."""
        starts = program.layers
        end = read_first(program.ops[starts[-1] :])
        names = {_base(buffer): buffer for buffer in end}
        streams = [buffer for buffer in program.residual if buffer.name in names]
        residual = [tuple(Tap(at, stream) for stream in streams) for at in starts[:-1]]
        residual.append(tuple(Tap(starts[-1], names[stream.name]) for stream in streams))
        attention, routers = dict[int, AttentionSite](), dict[int, RouterSite]()
        states, keys = dict[int, tuple[int, ...]](), dict[int, Tap]()
        layer = 0
        for at, op in enumerate(program.ops):
            while layer + 1 < len(starts) and at >= starts[layer + 1]:
                layer += 1
            match op:
                case Attend():
                    if op.append:
                        keys[op.layer] = Tap(at, op.k)
                    attention[layer] = AttentionSite(op, Tap(at, op.q), keys[op.layer])
                case MoE():
                    taps = Tap(at, op.experts), Tap(at, op.routing_weights)
                    routers[layer] = RouterSite(*taps, len(op.up))
                case CausalConv() | DeltaRule() | StateScan():
                    states[layer] = (*states.get(layer, ()), op.state)
        return cls(tuple(residual), starts[-1], attention, routers, states)


def read_first(ops: Iterable[Op]) -> list[Buffer]:
    """The buffers that `ops` read before they write them, in the order of their first use."""
    found, written = dict[Buffer, None](), set[Buffer]()
    for op in ops:
        out = getattr(op, "out", None)
        updates = isinstance(op, Add) or (isinstance(op, MatMul) and op.accumulate)
        for field in fields(op):
            value = getattr(op, field.name)
            for buffer in value if isinstance(value, tuple) else (value,):
                only_written = field.name == "out" and not updates
                if isinstance(buffer, Buffer) and not only_written and buffer not in written:
                    found[buffer] = None
        if isinstance(out, Buffer):
            written.add(out)
    return list(found)


def _base(buffer: Buffer) -> str:
    """The name of a buffer while it still has all rows of a step."""
    return buffer.name.removeprefix("last ")
