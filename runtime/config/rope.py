"""Rotary position embeddings (RoPE): the frequency of each pair of dimensions, with every kind of scaling.

Su et al. 2021, "RoFormer". Scaling: Chen et al. 2023, "Extending Context Window of Large Language Models
via Positional Interpolation" (linear); dynamic NTK as first described by its users and kept by
transformers; Peng et al. 2023, "YaRN"; Ding et al. 2024, "LongRoPE"; llama3 as published with Llama 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...quant.errors import DamagedFile


@dataclass(frozen=True)
class Llama3Scaling:
    """Divide low frequencies by `factor`, keep high ones, blend in between.

    A frequency is measured in turns over the `original_context` tokens that the model was trained with: below
    `low_turns` it is low, above `high_turns` high.
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
class Yarn:
    """Divide low frequencies by `factor`, keep high ones, and blend linearly over the pairs in between.

    The ramp is between the pairs that make `fast_turns` and `slow_turns` over `original_context` tokens; with
    `truncate` its ends are rounded outwards to whole pairs.
    """

    factor: float
    original_context: float
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    truncate: bool = True

    def apply(self, inv_freq: np.ndarray, base: float) -> np.ndarray:
        dims = 2 * len(inv_freq)

        def pair(turns: float) -> float:
            """The index, as a finite fraction, of the pair that makes this number of turns."""
            index = dims * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(base))
            return min(max(index, -1e9), 1e9)

        if not base > 1:
            raise DamagedFile(f"YaRN needs a RoPE base above 1, not {base:g}")
        first, last = pair(self.fast_turns), pair(self.slow_turns)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        width = last - first or 0.001
        divided = np.clip((np.arange(dims // 2) - first) / width, 0, 1)
        return inv_freq * (1 - divided) + inv_freq / self.factor * divided


@dataclass(frozen=True)
class DynamicNTK:
    """A base that grows with the length of a sequence of more than `original_context` tokens."""

    factor: float
    original_context: int

    def base(self, base: float, dims: int, length: int) -> float:
        beyond = max(length / self.original_context - 1, 0.0)
        return ntk_base(base, dims, 1 + self.factor * beyond)


@dataclass(frozen=True)
class LongRope:
    """Divisors [dims / 2] for sequences of more than `original_context` tokens; see `Rope.divisors`."""

    divisors: tuple[float, ...]
    original_context: int


@dataclass(frozen=True)
class Rope:
    """The rotary embeddings of a layer's queries and keys.

    The first `dims` dimensions of a head are rotated in pairs, (2i, 2i+1) if `interleaved`, else (i, i +
    dims/2). The angle of pair i is position · base^(-2i/dims), divided by `factor` (linear scaling) and,
    unless it is empty, by `divisors[i]`, and changed by `scaling`. cos and sin are multiplied by
    `attention_factor`.
    """

    base: float
    dims: int
    interleaved: bool
    factor: float = 1.0
    divisors: tuple[float, ...] = ()
    scaling: Llama3Scaling | Yarn | DynamicNTK | LongRope | None = None
    attention_factor: float = 1.0

    @property
    def original_context(self) -> int:
        """The sequence length in tokens above which the frequencies change; 0: they never do."""
        return self.scaling.original_context if isinstance(self.scaling, DynamicNTK | LongRope) else 0

    def inv_freq(self, length: int = 0) -> np.ndarray:
        """The frequency of each pair in radians a position, float32 [dims / 2], in a sequence of this length.

        Raises DamagedFile if base, scaling or divisors make a frequency that is not finite.
        """
        scaling, base, divisors = self.scaling, self.base, self.divisors
        if isinstance(scaling, DynamicNTK):
            base = scaling.base(base, self.dims, length)
        elif isinstance(scaling, LongRope) and length > scaling.original_context:
            divisors = scaling.divisors
        with np.errstate(all="ignore"):  # the check at the end reports every problem
            # Exponents, powers and reciprocals are rounded to float32, as models are trained with them.
            exponents = np.arange(0, self.dims, 2, dtype=np.float32) / np.float32(self.dims)
            powers = (base ** exponents.astype(np.float64)).astype(np.float32)
            inv_freq = (np.float32(1.0) / powers).astype(np.float64)
            if isinstance(scaling, Llama3Scaling):
                inv_freq = scaling.apply(inv_freq)
            elif isinstance(scaling, Yarn):
                inv_freq = scaling.apply(inv_freq, base)
            inv_freq = inv_freq / self.factor
            if divisors:
                inv_freq = inv_freq / np.array(divisors)
            inv_freq = inv_freq.astype(np.float32)
        if not np.isfinite(inv_freq).all():
            raise DamagedFile("the RoPE frequencies are not finite; base, scaling or divisors are wrong")
        return inv_freq


def ntk_base(base: float, dims: int, alpha: float) -> float:
    """The base that divides the lowest frequency by `alpha` and keeps the highest (NTK-aware scaling)."""
    return base * alpha ** (dims / (dims - 2)) if dims > 2 else base


def yarn_mscale(factor: float, scale: float = 1.0) -> float:
    """YaRN's factor of queries and of keys for a context that is longer by `factor`: 0.1 · scale · ln + 1."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def yarn_attention_factor(factor: float, scale: float = 1.0, scale_all: float = 0.0) -> float:
    """YaRN's factor of cos and sin: mscale(`scale`) / mscale(`scale_all`), or mscale(1) without both."""
    if not scale or not scale_all:
        return yarn_mscale(factor)
    return yarn_mscale(factor, scale) / yarn_mscale(factor, scale_all)


def longrope_attention_factor(factor: float, original_context: int) -> float:
    """LongRoPE's factor of cos and sin, at any length; `factor` is the new context over the original one."""
    if factor <= 1 or original_context <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_context))
