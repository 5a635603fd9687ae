"""Sampling parameters: how tokens are chosen, and when a generation ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import index

LEAST_PENALTY, MOST_PENALTY = 1e-30, 1e30


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are sampled and when generation ends. A value out of range raises ValueError.

    The steps are applied in this order:

    - `repeat_penalty`: logits of ids among the last `repeat_last_n` of prompt and answer are divided
      by this if positive and multiplied if negative; 1 is off (Keskar et al. 2019, CTRL).
      `repeat_last_n` 0 is off too, -1 is all of prompt and answer.
    - `top_k`: keep the k most likely tokens; 0, or more than the vocabulary, keeps all.
    - `top_p`: keep the most likely tokens until their probabilities reach p (Holtzman et al. 2019);
      1 is off, 0 keeps one token.
    - `min_p`: keep tokens at least min_p times as likely as the most likely one (Nguyen et al. 2024); 0 is
      off.
    - `temperature`: divides the remaining logits; 0 takes the most likely token, the lowest id of equals.

    `seed` makes a generation reproducible on the same machine; None takes a random seed. Generation ends
    after `max_tokens` tokens (None: when the context is full), at an end token unless `ignore_eos`, or,
    in text, in front of the first occurrence of a string in `stop`.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, "0 or more", 0.0 <= self.temperature < math.inf)
        _check_number("top_p", self.top_p, "between 0 and 1", 0.0 <= self.top_p <= 1.0)
        _check_number("min_p", self.min_p, "between 0 and 1", 0.0 <= self.min_p <= 1.0)
        least, most = LEAST_PENALTY, MOST_PENALTY
        fits = least <= self.repeat_penalty <= most
        _check_number("repeat_penalty", self.repeat_penalty, f"between {least:g} and {most:g}", fits)
        _check_count("top_k", self.top_k, 0)
        _check_count("repeat_last_n", self.repeat_last_n, -1)
        if self.seed is not None:
            _check_count("seed", self.seed, 0)
        if self.max_tokens is not None:
            _check_count("max_tokens", self.max_tokens, 0)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in stop):
            raise ValueError("stop must hold strings that are not empty")
        object.__setattr__(self, "stop", stop)


def _check_number(name: str, value: float, range_: str, inside: bool) -> None:
    if not inside:  # also NaN, which is inside no range
        raise ValueError(f"{name} must be {range_}, not {value}")


def _check_count(name: str, value: int, least: int) -> None:
    try:
        fits = index(value) >= least
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(f"{name} must be a whole number, {least} or more, not {value}")
