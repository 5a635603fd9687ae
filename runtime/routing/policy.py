"""When the small model's answer is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..engine.sampling.logprobs import TokenLogprobs
from .confidence import Calibration, Signs

DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True)
class Policy:
    """An answer is kept whose confidence is at least `threshold`: 0 keeps all, more than 1 none.

    Without a calibration the confidence is the geometric mean of the probabilities of the tokens.
    ValueError for a threshold that is no number.
    """

    threshold: float = DEFAULT_THRESHOLD
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise ValueError(f"a threshold is a number, not {self.threshold}")

    def confidence(self, tokens: Sequence[TokenLogprobs]) -> float:
        """From 0 to 1, of an answer with the log probabilities of at least two tokens in each place; 0 for
        one without tokens."""
        return self.of_signs(Signs.of(tokens))

    def of_signs(self, signs: Signs | None) -> float:
        """The confidence of an answer with these signs; None: one without tokens."""
        if signs is None:
            return 0.0
        return (
            math.exp(signs.mean_logprob) if self.calibration is None else self.calibration.confidence(signs)
        )

    def keeps(self, confidence: float) -> bool:
        """Whether an answer of this confidence is kept."""
        return confidence >= self.threshold


@dataclass(frozen=True)
class Route:
    """Two models to be loaded, by their files or folders, and when the small one's answer is kept."""

    small: Path
    large: Path
    policy: Policy
