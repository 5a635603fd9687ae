"""Rotary position embeddings: the frequencies of a layer, and reading them from a model's metadata.

Su et al. 2021, "RoFormer"; linear scaling: Chen et al. 2023, "Extending Context Window of Large
Language Models via Positional Interpolation"; llama3 scaling: as published with Llama 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..quant.errors import DamagedFile
from .fields import Fields, UnsupportedModel

SUPPORTED = ("default", "linear", "llama3")


@dataclass(frozen=True)
class Llama3Scaling:
    """Divide low frequencies by `factor`, keep high ones, blend in between.

    Low and high are measured in turns over the `original_context` that the model was trained with.
    """

    factor: float
    low_turns: float
    high_turns: float
    original_context: float

    def __post_init__(self) -> None:
        if not self.low_turns < self.high_turns:
            raise DamagedFile(
                f"llama3 RoPE scaling needs low_freq_factor ({self.low_turns}) "
                f"below high_freq_factor ({self.high_turns})"
            )

    def apply(self, inv_freq: np.ndarray) -> np.ndarray:
        turns = self.original_context * inv_freq / (2 * math.pi)
        keep = np.clip((turns - self.low_turns) / (self.high_turns - self.low_turns), 0, 1)
        return keep * inv_freq + (1 - keep) * inv_freq / self.factor


@dataclass(frozen=True)
class Rope:
    """How a layer rotates its queries and keys.

    The first `dims` dimensions of a head turn; pairs are (2i, 2i+1) if `interleaved`, else
    (i, i + dims/2). Pair i turns by position · base^(-2i/dims), divided by `factor` (linear scaling)
    or changed by `llama3`.
    """

    base: float
    dims: int
    interleaved: bool
    factor: float = 1.0
    llama3: Llama3Scaling | None = None

    def inv_freq(self, divisors: np.ndarray | None = None) -> np.ndarray:
        """Radians a position turns each pair by, float32 [dims / 2].

        `divisors` [dims / 2] are the frequency divisors that a GGUF file may bring as a tensor.
        Raises DamagedFile if base, scaling or divisors make a frequency that is not finite.
        """
        with np.errstate(all="ignore"):  # the check below speaks for all of them
            # Exponents, powers and reciprocals are rounded to float32, as models are trained with them.
            exponents = np.arange(0, self.dims, 2, dtype=np.float32) / np.float32(self.dims)
            powers = (self.base ** exponents.astype(np.float64)).astype(np.float32)
            inv_freq = (np.float32(1.0) / powers).astype(np.float64)
            if self.llama3 is not None:
                inv_freq = self.llama3.apply(inv_freq)
            inv_freq = inv_freq / self.factor
            if divisors is not None:
                inv_freq = inv_freq / divisors
            inv_freq = inv_freq.astype(np.float32)
        if not np.isfinite(inv_freq).all():
            raise DamagedFile("the RoPE frequencies are not finite; base, scaling or divisors are wrong")
        return inv_freq


def _scaled(base: float, dims: int, interleaved: bool, kind: str, fields: Fields) -> Rope:
    """The Rope for one entry of Hugging Face's `rope_scaling` / `rope_parameters`."""
    if kind == "default":
        return Rope(base, dims, interleaved)
    if kind == "linear":
        return Rope(base, dims, interleaved, factor=fields.number("factor"))
    if kind == "llama3":
        scaling = Llama3Scaling(
            fields.number("factor"),
            fields.number("low_freq_factor"),
            fields.number("high_freq_factor"),
            fields.number("original_max_position_embeddings"),
        )
        return Rope(base, dims, interleaved, llama3=scaling)
    raise unsupported(kind)


def unsupported(kind: str) -> UnsupportedModel:
    return UnsupportedModel(f"RoPE scaling {kind!r} is not supported; supported are {', '.join(SUPPORTED)}")


def rope_from_hf(config: Fields, dims: int, base: float, local_base: float | None) -> tuple[Rope, Rope]:
    """The Ropes of full and of sliding layers from config.json in either spelling.

    Published files have `rope_theta` and `rope_scaling` (with `rope_local_base_freq` for sliding
    layers that differ); transformers 5 writes `rope_parameters`, with one entry a layer type where
    these differ. `base` and `local_base` are the architecture's defaults; local_base None: sliding
    layers are rotated like the others.
    """

    def one(layer_type: str, key: str, default: float, scaling: Fields | None) -> Rope:
        theta = config.number(key, default)
        entry = config.section("rope_parameters")
        if entry is not None and layer_type in entry:
            entry = entry.section(layer_type)
        elif entry is not None and "full_attention" in entry:
            entry = entry.section("full_attention") if local_base is None else None
        elif layer_type == "sliding_attention":
            entry = None  # a flat entry is the global one
        if entry is None:
            entry = scaling
        if entry is None:
            return Rope(theta, dims, interleaved=False)
        theta = entry.number("rope_theta", theta)
        kind = entry.text("rope_type", entry.text("type", "default"))
        return _scaled(theta, dims, False, kind, entry)

    full = one("full_attention", "rope_theta", base, config.section("rope_scaling"))
    if local_base is None:
        return full, full
    return full, one("sliding_attention", "rope_local_base_freq", local_base, None)


def rope_from_gguf(
    metadata: Fields, dims: int, interleaved: bool, base: float, local_base: float | None
) -> tuple[Rope, Rope]:
    """The Ropes of full and of sliding layers from GGUF keys `rope.freq_base`, `rope.scaling.*`.

    Llama 3's scaling has no key there: its file brings the tensor `rope_freqs.weight` to divide by.
    """
    dims = metadata.integer("rope.dimension_count", dims, high=dims)
    theta = metadata.number("rope.freq_base", base)
    # Files from before rope.scaling.type only have the factor.
    old = metadata.number("rope.scale_linear", 1.0, zero=True)
    factor = metadata.number("rope.scaling.factor", old, zero=True) or 1.0
    kind = metadata.text("rope.scaling.type", "none" if factor == 1.0 else "linear")
    if kind not in ("none", "linear"):
        raise unsupported(kind)
    full = Rope(theta, dims, interleaved, factor=factor if kind == "linear" else 1.0)
    if local_base is None:
        return full, full
    return full, Rope(metadata.number("rope.freq_base_swa", local_base), dims, interleaved)
