"""AltUp and LAuReL: several residual streams, of which a layer works on one and predicts and corrects all.

Baykal et al. 2023, "Alternating Updates for Efficient Transformers"; Menghani et al. 2024, "LAuReL: Learned
Augmented Residual Layer". As in Gemma 3n.
"""

from __future__ import annotations

import numpy as np

from ..ops import Activation, Add, AltUpCorrect, AltUpPredict, Buffer, MatchMagnitude, MatMul
from .builder import Builder, LayerBuilder

_FLOOR = 1e-5**0.5  # of the magnitude of a stream that is rescaled


def expand_streams(b: Builder) -> None:
    """Streams 1 … n - 1: projections of stream 0, the embedding, rescaled to its magnitude."""
    first, *others = b.streams  # [rows, hidden] each
    for j, stream in enumerate(others):
        b.emit(MatMul(first, stream, b.weights.matrix(f"altup_proj.{j}.weight")))
        b.emit(MatchMagnitude(stream, first, _FLOOR))


def merge_streams(b: Builder) -> None:
    """x = the mean of stream 0 and projections of the other streams, rescaled to its magnitude."""
    first, *others = b.streams  # [rows, hidden] each
    for j, stream in enumerate(others):
        projected = b.h if j else b.x
        b.emit(MatMul(stream, projected, b.weights.matrix(f"altup_unembd_proj.{j}.weight")))
        b.emit(MatchMagnitude(projected, first, _FLOOR))
        if j:
            b.emit(Add(b.h, b.x))
    mean = 1 / len(b.streams)
    b.emit(Add(first, b.x, mean, mean))


def predict(b: LayerBuilder) -> None:
    """Predict all streams behind this layer; x = the active one."""
    altup = b.config.altup
    assert altup
    n, active = altup.streams, altup.active
    modalities = route(b, b.streams[active])  # [rows, n]
    coefficients = b.buffer("coefficients", n * n)
    b.linear("altup_predict_coef", modalities, coefficients)  # coefficients [rows, n · n]
    b.emit(AltUpPredict(b.streams, coefficients, active, b.x))  # x [rows, hidden]


def correct(b: LayerBuilder) -> None:
    """Correct all streams by the layer's output x; then x = the active stream times a learned scale."""
    altup = b.config.altup
    assert altup
    weight = b.vector("altup_correct_scale")
    weight = weight if altup.scaled else np.ones_like(weight)
    modalities = route(b, b.x)  # [rows, n]
    correction = b.buffer("correction", altup.streams)
    b.linear("altup_correct_coef", modalities, correction)  # correction [rows, n]
    b.emit(AltUpCorrect(b.streams, correction, altup.active, b.x, weight))


def route(b: LayerBuilder, x: Buffer) -> Buffer:
    """tanh(router(norm(x) / hidden)): [rows, n]."""
    b.norm("altup_router_norm", x, b.h, scale=1 / x.width)
    modalities = b.buffer("modalities", len(b.streams))
    b.linear("altup_router", b.h, modalities)
    b.emit(Activation(modalities, modalities, "tanh"))
    return modalities


def laurel(b: LayerBuilder, x: Buffer) -> None:
    """laurel = x + norm(right(left x)), a low-rank path around attention."""
    assert b.config.altup
    low, out = b.buffer("laurel low", b.config.altup.laurel_rank), laurel_out(b)
    b.linear("laurel_l", x, low)  # low [rows, rank]
    b.linear("laurel_r", low, out)  # out [rows, hidden]
    b.norm("laurel_post_norm", out, out)
    b.emit(Add(x, out))


def add_laurel(b: LayerBuilder) -> None:
    """x = (x + laurel) / √2."""
    b.emit(Add(laurel_out(b), b.x, 0.5**0.5, 0.5**0.5))


def laurel_out(b: LayerBuilder) -> Buffer:
    """The output of the low-rank path, [rows, hidden]."""
    return b.buffer("laurel", b.config.hidden)
