"""One decoder layer: a token mixer (attention, MLA, recurrence) and an FFN or a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ops import Add, Buffer
from . import altup
from .attention import attention
from .builder import LayerBuilder
from .ffn import feed_forward
from .mla import latent_attention
from .moe import experts_beside_ffn, mixture_of_experts
from .per_layer import add_per_layer_input
from .recurrent import recurrent_mixer


@dataclass(frozen=True)
class MixerOutput:
    """The output of a token mixer, and the stem of the projection that adds it to the residual stream."""

    buffer: Buffer  # [rows, width of the mixer]
    projection: str
    scale: float


def decoder_layer(b: LayerBuilder) -> None:
    """x += mixer(norm(x)); x += ffn(norm(x)). With `parallel` the FFN reads x without the mixer's output."""
    c = b.config
    if c.altup:
        altup.predict(b)  # x [rows, hidden]
    mixers = token_mixers(b)  # [rows, …]
    if b.is_last:
        b, mixers = select_rows(b, mixers)  # from here on [logits rows, …]
    if c.parallel:
        ffn_input = norm_ffn_input(b)
        add_mixers(b, mixers)
    else:
        add_mixers(b, mixers)  # x [rows, hidden]
        b.stream_norm("attn_output_norm")
        ffn_input = norm_ffn_input(b)
    if b.layer.is_moe and c.moe and c.moe.parallel_dense:
        experts_beside_ffn(b, ffn_input)
    elif b.layer.is_moe:
        mixture_of_experts(b, ffn_input)
    elif b.layer.has_ffn:
        feed_forward(b, ffn_input)  # x [rows, hidden]
    finish_layer(b)


def token_mixers(b: LayerBuilder) -> list[MixerOutput]:
    """The layer's mixers, of which a hybrid may have two side by side (Falcon-H1), or none."""
    c, mixers = b.config, list[MixerOutput]()
    if b.layer.has_recurrence:
        x = b.pre_norm("attn_norm", b.h, c.multipliers.recurrent_in)  # x [rows, hidden]
        mixers.append(MixerOutput(recurrent_mixer(b, x), "ssm_out", c.multipliers.recurrent_out))
    if b.layer.has_attention:
        x = b.pre_norm("attn_norm", b.ffn_input if b.single_norm else b.h, c.multipliers.attention_in)
        if c.altup:
            altup.laurel(b, x)
        out = latent_attention(b, x) if c.mla else attention(b, x)
        mixers.append(MixerOutput(out, "attn_output", c.multipliers.attention_out))
    return mixers


def select_rows(b: LayerBuilder, mixers: list[MixerOutput]) -> tuple[LayerBuilder, list[MixerOutput]]:
    """Drop the rows whose logits are not asked for, in the last layer.

    Behind the last mixer no row reads another one, and the keys and values of all rows are in the cache.
    """
    c = b.config
    live = [*(mixer.buffer for mixer in mixers), b.x]
    if b.single_norm:
        live.append(b.ffn_input)
    if c.per_layer_input:
        live.append(b.per_layer_inputs)
    if c.altup:
        live += [altup.laurel_out(b), *b.streams]
    last = b.select_rows(live)
    return last, [replace(m, buffer=last.buffer(m.buffer.name, m.buffer.width)) for m in mixers]


def add_mixers(b: LayerBuilder, mixers: list[MixerOutput]) -> None:
    """x += projection of each mixer's output."""
    for mixer in mixers:
        b.residual(mixer.projection, mixer.buffer, "post_attention_norm", mixer.scale)
    if b.config.altup:
        altup.add_laurel(b)


def norm_ffn_input(b: LayerBuilder) -> Buffer:
    """The input of the FFN: norm(x), [rows, hidden]."""
    layer = b.layer
    if b.single_norm or not layer.has_ffn:
        return b.ffn_input
    if layer.has_attention or layer.has_recurrence:
        return b.pre_norm("ffn_norm", b.ffn_input)
    return b.pre_norm("attn_norm", b.ffn_input)  # the only norm of a layer without mixer


def finish_layer(b: LayerBuilder) -> None:
    """Behind the FFN: AltUp's correction, the per-layer input, and a scale of the residual stream."""
    c, scale = b.config, 1.0
    if c.layer_scales:
        scale = float(b.vector("layer_output_scale")[0])
    if c.altup:
        altup.correct(b)
    if c.per_layer_input:
        add_per_layer_input(b, scale)
    elif scale != 1.0:
        b.emit(Add(b.x, b.x, scale, 0.0))
    if not b.is_last:  # that of the last layer is the model's end
        b.stream_norm("layer_output_norm")
