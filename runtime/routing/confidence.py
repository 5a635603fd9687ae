"""How sure a model was of its own answer, by the probabilities of its tokens.

signs       mean log probability of the tokens, entropy of the first ones, margin
confidence  a number from 0 to 1: as it is, or calibrated to the probability that an answer is right
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...quant.errors import DamagedFile
from ...quant.safe_files import NewFile
from ...untrusted import parse_json, read_file
from ..engine.sampling.logprobs import TokenLogprobs

N_TOP = 8  # likeliest tokens that the signs are made of
N_FIRST = 4  # tokens whose entropy counts
RIDGE = 1.0  # of the regression, in units of examples: what keeps its weights finite where a sign decides all
NEWTON_STEPS = 50
KIND, VERSION = "kukri routing calibration", 1
_MOST_BYTES, _MOST_MARKS = 1 << 16, 1 << 10


@dataclass(frozen=True)
class Signs:
    """Of one answer, in natural logarithms.

    - `mean_logprob`: the mean log probability of its tokens.
    - `first_entropy`: the mean entropy of the distributions of the first N_FIRST tokens. All tokens but the
      N_TOP likeliest count as one, so that it is a lower bound.
    - `margin`: the mean difference between the probabilities of the likeliest token and of the next one.
    """

    mean_logprob: float
    first_entropy: float
    margin: float

    @classmethod
    def of(cls, tokens: Sequence[TokenLogprobs]) -> Signs | None:
        """The signs of an answer with the log probabilities of at least two tokens in each place; None for an
        answer without tokens."""
        if not tokens:
            return None
        tops = [[math.exp(logprob) for _, logprob in token.top] for token in tokens]
        margins = [top[0] - top[1] if len(top) > 1 else sum(top) for top in tops]
        return cls(
            max(-1e4, math.fsum(token.logprob for token in tokens) / len(tokens)),
            math.fsum(map(_entropy, tops[:N_FIRST])) / len(tops[:N_FIRST]),
            math.fsum(margins) / len(margins),
        )

    def values(self) -> np.ndarray:
        """float64 [3]"""
        return np.array([self.mean_logprob, self.first_entropy, self.margin])


def _entropy(top: Sequence[float]) -> float:
    rest = max(0.0, 1.0 - math.fsum(top))
    return -math.fsum(p * math.log(p) for p in (*top, rest) if p > 0.0)


@dataclass(frozen=True)
class Calibration:
    """From signs to the probability that an answer is right: a logistic regression on answers that are known
    to be right or wrong.

    - `model`: the fingerprint of the small model, whose signs mean nothing for another one.
    - `means`, `scales`: float [3], by which signs become numbers around 0; `weights` [3] and `bias` of these.
    - `threshold`: the confidence below which the large model should answer.
    """

    model: str
    means: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    threshold: float = 0.5

    @classmethod
    def fit(cls, model: str, signs: Sequence[Signs], right: Sequence[bool]) -> Calibration:
        """The regression of maximum likelihood with a ridge penalty, by Newton's method. ValueError for no
        answers."""
        if not signs:
            raise ValueError("a calibration needs answers")
        raw = np.array([each.values() for each in signs])
        means, scales = raw.mean(axis=0), raw.std(axis=0)
        scales[scales < 1e-9] = 1.0
        x = np.column_stack([(raw - means) / scales, np.ones(len(raw))])
        y = np.asarray(right, np.float64)
        ridge = RIDGE * np.diag([1.0, 1.0, 1.0, 1e-3])  # hardly any on the bias
        weights = np.zeros(4)
        for _ in range(NEWTON_STEPS):
            p = _sigmoid(x @ weights)
            gradient = x.T @ (y - p) - ridge @ weights
            step = np.linalg.solve((x.T * (p * (1 - p))) @ x + ridge, gradient)
            weights += step
            if np.abs(step).max() < 1e-10:
                break
        *of_signs, bias = weights.tolist()
        return cls(model, tuple(means.tolist()), tuple(scales.tolist()), tuple(of_signs), bias)

    def confidence(self, signs: Signs) -> float:
        """The probability that an answer with these signs is right."""
        x = (signs.values() - np.array(self.means)) / np.array(self.scales)
        return float(_sigmoid(x @ np.array(self.weights) + self.bias))

    def save(self, path: Path) -> None:
        """Write a file of it, in JSON. Raises OSError."""
        with NewFile(path) as file:
            file.write(json.dumps({"kind": KIND, "version": VERSION, **asdict(self)}, indent=1).encode())

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """The calibration in a file that `save` has written. Raises DamagedFile and OSError."""
        raw = read_file(path, _MOST_BYTES, DamagedFile)
        fields = parse_json(raw, path.name, _MOST_MARKS, DamagedFile)
        if not isinstance(fields, Mapping) or fields.get("kind") != KIND:
            raise DamagedFile(f"{path.name} is no calibration (llm eval --route writes one)")
        if fields.get("version") != VERSION:
            raise DamagedFile(f"{path.name} is a calibration of another version; make it anew")
        try:
            found = cls(
                str(fields["model"]),
                _numbers(fields["means"]),
                _numbers(fields["scales"]),
                _numbers(fields["weights"]),
                _number(fields["bias"]),
                _number(fields["threshold"]),
            )
        except (KeyError, TypeError, ValueError):
            raise DamagedFile(f"{path.name} is damaged: its numbers are no calibration") from None
        if not all(scale > 0 for scale in found.scales):
            raise DamagedFile(f"{path.name} is damaged: its numbers are no calibration")
        return found


def _numbers(given: Any) -> tuple[float, ...]:
    found = tuple(map(_number, given))
    if len(found) != 3:
        raise ValueError
    return found


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise ValueError
    return float(given)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))  # which overflows nowhere
