"""Log probabilities of tokens, as the model has them: before any bias, penalty or temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .top_k import largest


@dataclass(frozen=True)
class TokenLogprobs:
    """The natural logarithm of a token's probability, and the most likely tokens in its place.

    `top` are pairs of an id and its log probability, the most likely first, as many as were asked for;
    tokens with a probability of 0 are not among them.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(logits: np.ndarray, token: int, n: int) -> TokenLogprobs:
    """The log probability of `token` and of the `n` most likely ones, for logits float32 [vocab].

    The softmax is computed in float64. A token beyond the logits, which only a prompt can have, has the
    probability 0.
    """
    peak = float(logits.max())
    log_sum = peak + math.log(np.exp(logits.astype(np.float64) - peak).sum())
    best = largest(logits, n) if n else np.empty(0, np.intp)
    top = zip(best.tolist(), (logits[best].astype(np.float64) - log_sum).tolist(), strict=True)
    logprob = float(logits[token]) - log_sum if token < len(logits) else -math.inf
    return TokenLogprobs(token, logprob, tuple(top))
