"""Sampling parameters: how tokens are chosen, and when a generation ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

LEAST_PENALTY, MOST_PENALTY = 1e-30, 1e30
DEFAULT_SAMPLERS = (
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
)  # fmt: skip
_ALIASES = {
    "typical": "typ_p",
    "typical_p": "typ_p",
    "typ": "typ_p",
    "nucleus": "top_p",
    "temp": "temperature",
}
_NUMBERS = {  # name → the least and the largest value
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "top_n_sigma": (-1.0, math.inf),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "dynatemp_range": (0.0, math.inf),
    "dynatemp_exp": (0.0, math.inf),
    "repeat_penalty": (LEAST_PENALTY, MOST_PENALTY),
    "presence_penalty": (-MOST_PENALTY, MOST_PENALTY),
    "frequency_penalty": (-MOST_PENALTY, MOST_PENALTY),
    "dry_multiplier": (0.0, MOST_PENALTY),
    "dry_base": (1.0, MOST_PENALTY),
    "mirostat_lr": (0.0, math.inf),
    "mirostat_ent": (0.0, math.inf),
}
_COUNTS = {"top_k": 0, "repeat_last_n": -1, "dry_allowed_length": 1, "dry_penalty_last_n": -1}
_OPTIONAL_COUNTS = ("seed", "max_tokens", "logprobs", "prompt_logprobs")


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are sampled and when generation ends. A value out of range raises ValueError.

    First the `logit_bias` is added: pairs of an id, or of a text that is one token, and what is added to
    its logit; -inf bans it. A mapping is taken as well, and texts "ID=X" and "TEXT=X".

    Then the steps that `samplers` names are applied in its order; one that it does not name has no effect.
    They are those of llama.cpp, with its names (a list as one text, "top_k;temperature", is taken as well),
    and by default in its order:

    - `penalties`: logits of ids among the last `repeat_last_n` of prompt and answer are divided by
      `repeat_penalty` if positive and multiplied if negative; 1 is off (Keskar et al. 2019, CTRL). Then
      `presence_penalty` is subtracted, and `frequency_penalty` as often as the id is there; 0 is off.
      `repeat_last_n` 0 is off too, -1 is all of prompt and answer.
    - `dry` ("don't repeat yourself"): an id that would make the last tokens, n ≥ `dry_allowed_length` of
      them, a longer repetition of an earlier passage, loses `dry_multiplier` · `dry_base`^(n −
      `dry_allowed_length`); 0 is off. Only the last `dry_penalty_last_n` tokens are looked at (-1: all),
      and no repetition goes beyond one of `dry_sequence_breakers`, texts or tuples of ids.
    - `top_n_sigma`: keep logits of at least the largest one minus so many standard deviations (Tang et al.
      2024); 0 and -1 are off.
    - `top_k`: keep the k most likely tokens; 0, or more than the vocabulary, keeps all.
    - `typ_p`: keep the tokens whose surprise is nearest to the entropy until their probabilities exceed
      `typical_p` (Meister et al. 2022); 1 is off.
    - `top_p`: keep the most likely tokens until their probabilities reach p (Holtzman et al. 2019);
      1 is off, 0 keeps one token.
    - `min_p`: keep tokens at least min_p times as likely as the most likely one (Nguyen et al. 2024); 0 is
      off.
    - `xtc` ("exclude top choices"): with `xtc_probability`, of the tokens that have at least the probability
      `xtc_threshold` keep only the least likely, with all below; 0, and a threshold above ½, are off.
    - `temperature`: divides the remaining logits; 0 takes the most likely token, the lowest id of equals.
      With `dynatemp_range` r it is between temperature ± r (not below 0), as the entropy of the tokens,
      divided by the largest that so many could have, to the power of `dynatemp_exp` tells.

    `mirostat` 2 (Basu et al. 2020) replaces them all but the plain temperature: it keeps tokens whose
    surprise is at most μ bits, at first 2 · `mirostat_ent`, and after each token lowers μ by `mirostat_lr` ·
    (the token's surprise − `mirostat_ent`).

    `seed` makes a generation reproducible on the same machine; None takes a random seed. Generation ends
    after `max_tokens` tokens (None: when the context is full), at an end token unless `ignore_eos`, or,
    in text, in front of the first occurrence of a string in `stop`.

    `logprobs` asks for the log probability of each token of the answer, and of the so many most likely ones
    in its place; `prompt_logprobs` for those of the prompt's tokens. They are the model's own, before
    any of the steps above. None: no.

    An engine has no text: it ignores `stop`, and refuses a bias or a sequence breaker that is a text.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exp: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str | tuple[int, ...], ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_lr: float = 0.1
    mirostat_ent: float = 5.0
    logit_bias: tuple[tuple[int | str, float], ...] = ()
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in _NUMBERS.items():
            _check_number(name, getattr(self, name), least, most)
        for name, least_count in _COUNTS.items():
            _check_count(name, getattr(self, name), least_count)
        for name in _OPTIONAL_COUNTS:
            if (value := getattr(self, name)) is not None:
                _check_count(name, value, 0)
        if self.mirostat not in (0, 2):
            why = " (version 1 is not supported; 2 replaces it)" if self.mirostat == 1 else ""
            raise ValueError(f"mirostat must be 0 or 2, not {self.mirostat}{why}")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in stop):
            raise ValueError("stop must hold strings that are not empty")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "samplers", _sampler_names(self.samplers))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        object.__setattr__(self, "dry_sequence_breakers", _breakers(self.dry_sequence_breakers))

    @property
    def has_penalties(self) -> bool:
        """Whether tokens are penalised that are there already."""
        off = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) == (1.0, 0.0, 0.0)
        return bool(self.repeat_last_n) and not off and "penalties" in self.samplers

    @property
    def has_dry(self) -> bool:
        """Whether repetitions are penalised by DRY."""
        active = self.dry_multiplier > 0.0 and self.dry_penalty_last_n != 0
        return active and "dry" in self.samplers and not self.mirostat


def _check_number(name: str, value: float, least: float, most: float) -> None:
    try:
        inside = least <= value <= most and value < math.inf  # not NaN, which is inside no range
    except TypeError:
        inside = False
    if not inside:
        range_ = f"{least:g} or more" if most == math.inf else f"between {least:g} and {most:g}"
        raise ValueError(f"{name} must be {range_}, not {value}")


def _check_count(name: str, value: int, least: int) -> None:
    if not _is_count(value, least):
        raise ValueError(f"{name} must be a whole number, {least} or more, not {value}")


def _is_count(value: Any, least: int = 0) -> bool:
    try:
        return index(value) >= least
    except TypeError:
        return False


def _sampler_names(names: Iterable[str] | str) -> tuple[str, ...]:
    """The names of steps as llama.cpp spells them first; ValueError for others."""
    text = names if isinstance(names, str) else ";".join(map(str, names))
    found = []
    for each in text.replace(",", ";").split(";") if text else ():
        name = each.strip().replace("-", "_")
        name = _ALIASES.get(name, name)
        if name not in DEFAULT_SAMPLERS:
            raise ValueError(f"samplers has no {each!r:.40}; there are {', '.join(DEFAULT_SAMPLERS)}")
        found.append(name)
    return tuple(found)


def _biases(given: Any) -> tuple[tuple[int | str, float], ...]:
    """Pairs of an id or a text, and what is added; of several for the same the last counts."""
    items = given.items() if isinstance(given, Mapping) else [given] if isinstance(given, str) else given
    try:
        pairs = dict(_typed_bias(item) if isinstance(item, str) else item for item in items)
    except (TypeError, ValueError):
        raise ValueError(
            f"logit_bias must hold pairs of an id or text and a number, or ID=X or TEXT=X, not {given!r:.60}"
        ) from None
    found: dict[int | str, float] = {}
    for key, bias in pairs.items():
        if not (isinstance(key, str) and key) and not _is_count(key):
            raise ValueError(f"logit_bias must be for token ids or texts, not {key!r:.40}")
        try:
            fits = -MOST_PENALTY <= bias <= MOST_PENALTY or bias == -math.inf
        except TypeError:
            fits = False
        if not fits:
            raise ValueError(
                f"logit_bias must be between {-MOST_PENALTY:g} and {MOST_PENALTY:g}, or -inf, not {bias}"
            )
        found[key if isinstance(key, str) else index(key)] = float(bias)
    return tuple(found.items())


def _typed_bias(text: str) -> tuple[int | str, float]:
    """A bias as it is typed, ID=X or TEXT=X."""
    token, _, amount = text.rpartition("=")
    return (int(token) if token.isascii() and token.isdigit() else token), float(amount)


def _breakers(given: Iterable[str | Iterable[int]] | str) -> tuple[str | tuple[int, ...], ...]:
    """Texts or tuples of ids, none empty."""
    found: list[str | tuple[int, ...]] = []
    for each in [given] if isinstance(given, str) else given:
        try:
            breaker = each if isinstance(each, str) else tuple(index(id_) for id_ in each)
        except TypeError:
            breaker = ()
        if not breaker:
            raise ValueError(
                f"dry_sequence_breakers must be texts or tuples of ids, none empty, not {each!r:.40}"
            )
        found.append(breaker)
    return tuple(found)
