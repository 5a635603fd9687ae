"""Several residual streams, of which each layer works on one and predicts and corrects the others.

Baykal et al. 2023, "Alternating Updates for Efficient Transformers"; with a low-rank path around attention,
Menghani et al. 2024, "LAuReL: Learned Augmented Residual Layer". As in Gemma 3n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import DamagedFile
from ..archs import Arch
from ..ops import Activation, Add, AltUpCorrect, AltUpPredict, Buffer, MatchMagnitude, MatMul, Op
from .fields import Fields

_FLOOR = 1e-5**0.5  # of a stream's magnitude, where it is brought to another's
MAX_STREAMS = 64


@dataclass(frozen=True)
class AltUp:
    """How many streams there are, and what goes around attention."""

    streams: int
    active: int  # the one that layers work on
    laurel_rank: int
    scaled: bool = True  # the active stream is scaled where the per-layer inputs read it

    def __post_init__(self) -> None:
        if not self.active < self.streams or not 2 <= self.streams <= MAX_STREAMS:
            raise DamagedFile(f"stream {self.active} of {self.streams} cannot be the active one")


def altup_from_hf(keys: Fields, arch: Arch) -> AltUp | None:
    """None for a model of one stream. Raises DamagedFile."""
    if "altup_router" not in arch.layer:
        return None
    return AltUp(
        streams=keys.integer("altup_num_inputs"),
        active=keys.integer("altup_active_idx", low=0),
        laurel_rank=keys.integer("laurel_rank"),
        scaled=keys.flag("altup_correct_scale", True),
    )


def altup_from_gguf(keys: Fields, arch: Arch, held: Mapping[str, QTensor]) -> AltUp | None:
    """None for a model of one stream. Raises DamagedFile."""
    if "altup_router" not in arch.layer:
        return None
    laurel = held.get("blk.0.laurel_l.weight")
    if laurel is None:
        raise DamagedFile("tensor blk.0.laurel_l.weight is missing")
    return AltUp(
        streams=keys.integer("altup.num_inputs"),
        active=keys.integer("altup.active_idx", low=0),
        laurel_rank=laurel.shape[0],
    )


@dataclass(frozen=True)
class Streams:
    """The streams [rows, hidden], and what their ops need; `norm` and `linear` make the ops of a layer's
    tensors."""

    altup: AltUp
    streams: tuple[Buffer, ...]
    x: Buffer  # the active one, as a layer works on it
    h: Buffer
    seen: Buffer  # what the router makes of it, [rows, streams]
    coefficients: Buffer  # [rows, streams · streams]
    correction: Buffer  # [rows, streams]
    norm: Callable[..., Op]
    linear: Callable[..., Op]

    def split(self, matrix: Callable[[str], QTensor]) -> list[Op]:
        """All streams of the first one, the embedding, with its magnitude."""
        ops: list[Op] = []
        for j, stream in enumerate(self.streams[1:]):
            ops.append(MatMul(self.streams[0], stream, matrix(f"altup_proj.{j}.weight")))
            ops.append(MatchMagnitude(stream, self.streams[0], _FLOOR))
        return ops

    def join(self, matrix: Callable[[str], QTensor]) -> list[Op]:
        """x = the mean of all streams, each projected back and with the magnitude of the first."""
        ops: list[Op] = []
        for j, stream in enumerate(self.streams[1:]):
            back = self.h if j else self.x
            ops.append(MatMul(stream, back, matrix(f"altup_unembd_proj.{j}.weight")))
            ops.append(MatchMagnitude(back, self.streams[0], _FLOOR))
            ops += [Add(self.h, self.x)] if j else []
        part = 1 / len(self.streams)
        return [*ops, Add(self.streams[0], self.x, part, part)]

    def predict(self, i: int) -> list[Op]:
        """What layer `i` is going to make of all streams; x is the active one."""
        a = self.altup
        return [
            *self._route(i, self.streams[a.active]),
            self.linear(i, "altup_predict_coef", self.seen, self.coefficients),
            AltUpPredict(self.streams, self.coefficients, a.active, self.x),
        ]

    def correct(self, i: int, weight: np.ndarray) -> list[Op]:
        """All streams by what layer `i` has made of x, which is the active one again, times `weight`."""
        a = self.altup
        weight = weight if a.scaled else np.ones_like(weight)
        return [
            *self._route(i, self.x),
            self.linear(i, "altup_correct_coef", self.seen, self.correction),
            AltUpCorrect(self.streams, self.correction, a.active, self.x, weight),
        ]

    def _route(self, i: int, x: Buffer) -> list[Op]:
        return [
            self.norm(f"blk.{i}.altup_router_norm", x, self.h, scale=1 / x.width),
            self.linear(i, "altup_router", self.h, self.seen),
            Activation(self.seen, self.seen, "tanh"),
        ]
