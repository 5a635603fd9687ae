"""A slow twin of the sampler: the definitions written down in loops, over all tokens, in float64.

It shares no code with the sampler, and gives the distribution that a token is drawn from.
"""

from __future__ import annotations

import math

import numpy as np

from kukri.runtime.engine.sampling.params import SamplingParams

Branch = tuple[float, dict[int, float]]  # a probability, and the logits of the tokens that are left


def distribution(
    logits: np.ndarray, params: SamplingParams, history: list[int], mu: float = 0.0
) -> np.ndarray:
    """The probability of each token, float64 [vocab]."""
    left = {id_: float(logit) for id_, logit in enumerate(logits)}
    for id_, bias in params.logit_bias:
        if id_ in left:
            left[id_] += bias
    branches: list[Branch] = [(1.0, {id_: logit for id_, logit in left.items() if logit > -math.inf})]
    if params.mirostat:
        branches = [mirostat(*temperature(*branches[0], params, dynamic=False), mu)]
    else:
        for name in params.samplers:
            branches = [after for branch in branches for after in step(name, *branch, params, history)]
    result = np.zeros(len(logits))
    for chance, tokens in branches:
        for id_, p in softmax(tokens).items():
            result[id_] += chance * p
    return result


def step(name: str, chance: float, tokens: dict[int, float], params: SamplingParams, history: list[int]):
    if name == "xtc":
        return xtc(chance, tokens, params)
    if name == "temperature":
        return [temperature(chance, tokens, params)]
    if name == "penalties":
        return [(chance, penalties(tokens, params, history))]
    if name == "dry":
        losses = dry(history, params)
        return [(chance, {id_: logit - losses.get(id_, 0.0) for id_, logit in tokens.items()})]
    return [(chance, {id_: tokens[id_] for id_ in kept(name, tokens, params)})]


def softmax(tokens: dict[int, float]) -> dict[int, float]:
    peak = max(tokens.values())
    weights = {id_: math.exp(logit - peak) for id_, logit in tokens.items()}
    total = math.fsum(weights.values())
    return {id_: weight / total for id_, weight in weights.items()}


def descending(scores: dict[int, float]) -> list[int]:
    return sorted(scores, key=lambda id_: (-scores[id_], id_))


def kept(name: str, tokens: dict[int, float], params: SamplingParams) -> list[int]:
    p = softmax(tokens)
    order = descending(tokens)
    if name == "top_k":
        return order[: params.top_k] if params.top_k else order
    if name == "top_p":
        return until(order, p, lambda total: total >= params.top_p) if params.top_p < 1 else order
    if name == "min_p":
        return [id_ for id_ in order if p[id_] >= params.min_p * p[order[0]] * (1 - 1e-9)]
    if name == "top_n_sigma":
        if params.top_n_sigma <= 0:
            return order
        mean = math.fsum(tokens.values()) / len(tokens)
        deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in tokens.values()) / len(tokens))
        return [id_ for id_ in order if tokens[id_] >= tokens[order[0]] - params.top_n_sigma * deviation]
    assert name == "typ_p"
    if params.typical_p == 1:
        return order
    entropy = -math.fsum(x * math.log(x) for x in p.values() if x > 0)
    distance = {id_: -abs(-math.log(x) - entropy) for id_, x in p.items() if x > 0}
    return until(descending(distance), p, lambda total: total > params.typical_p)


def until(order: list[int], p: dict[int, float], enough) -> list[int]:
    total = 0.0
    for n, id_ in enumerate(order, 1):
        total += p[id_]
        if enough(total):
            return order[:n]
    return order


def xtc(chance: float, tokens: dict[int, float], params: SamplingParams) -> list[Branch]:
    if not params.xtc_probability or params.xtc_threshold > 0.5 or len(tokens) < 2:
        return [(chance, tokens)]
    p = softmax(tokens)
    choices = [id_ for id_ in descending(tokens) if p[id_] >= params.xtc_threshold]
    without = {id_: logit for id_, logit in tokens.items() if id_ not in choices[:-1]}
    q = params.xtc_probability
    return [(chance * q, without), (chance * (1 - q), tokens)]


def temperature(
    chance: float, tokens: dict[int, float], params: SamplingParams, dynamic: bool = True
) -> Branch:
    t = params.temperature
    if dynamic and params.dynatemp_range > 0:
        if len(tokens) < 2:
            return chance, tokens
        least, most = max(0.0, t - params.dynatemp_range), t + params.dynatemp_range
        entropy = -math.fsum(x * math.log(x) for x in softmax(tokens).values() if x > 0)
        t = least + (most - least) * (entropy / math.log(len(tokens))) ** params.dynatemp_exp
    if t == 0.0:
        best = descending(tokens)[0]
        return chance, {best: tokens[best]}
    return chance, {id_: logit / t for id_, logit in tokens.items()}


def penalties(tokens: dict[int, float], params: SamplingParams, history: list[int]) -> dict[int, float]:
    n = params.repeat_last_n
    recent = history if n < 0 else history[len(history) - n :] if n <= len(history) else history
    result = dict(tokens)
    for id_ in tokens:
        count = sum(other == id_ for other in recent)
        if count:
            logit = result[id_]
            logit = logit * params.repeat_penalty if logit <= 0 else logit / params.repeat_penalty
            result[id_] = logit - count * params.frequency_penalty - params.presence_penalty
    return result


def dry(history: list[int], params: SamplingParams) -> dict[int, float]:
    """What each id loses."""
    window = history[-params.dry_penalty_last_n :] if params.dry_penalty_last_n > 0 else history
    if not params.has_dry or len(window) <= params.dry_allowed_length:
        return {}
    limit = behind_breaker(window, [list(breaker) for breaker in params.dry_sequence_breakers])
    longest: dict[int, int] = {}
    for end in range(1, len(window)):  # a passage window[end - n : end], and the token behind it
        n = 0
        while n < end and window[end - 1 - n] == window[len(window) - 1 - n]:
            n += 1
        n = min(n, limit)
        if n >= params.dry_allowed_length:
            longest[window[end]] = max(longest.get(window[end], 0), n)
    alone = {breaker[0] for breaker in params.dry_sequence_breakers if len(breaker) == 1}
    return {
        id_: params.dry_multiplier * params.dry_base ** (n - params.dry_allowed_length)
        for id_, n in longest.items()
        if id_ not in alone
    }


def behind_breaker(window: list[int], breakers: list[list[int]]) -> int:
    """The number of tokens behind the sequence breaker that begins last; of several the longest."""
    for begin in range(len(window) - 1, -1, -1):
        lengths = [len(each) for each in breakers if window[begin : begin + len(each)] == each]
        if lengths:
            return len(window) - begin - max(lengths)
    return len(window)


def mirostat(chance: float, tokens: dict[int, float], mu: float) -> Branch:
    p = softmax(tokens)
    order = descending(tokens)
    few = [id_ for id_ in order if -math.log2(p[id_]) <= mu]
    return chance, {id_: tokens[id_] for id_ in few or order[:1]}
