"""What becomes of a step's logits: the next tokens, and the log probabilities that were asked for."""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from ..errors import BadLogits
from ..sampling.logprobs import token_logprobs
from ..sampling.top_k import TopK
from .batching import Rows


def choose(rows: Rows, logits: np.ndarray | TopK) -> None:
    """Sample the next token of a sequence behind `rows`, or note why there is none."""
    sequence = rows.sequence
    try:
        token = sequence.sampler.sample(logits, sequence.ids)
    except BadLogits as error:
        step = f"token {sequence.n_new + 1} of the answer (position {rows.first + rows.n})"
        sequence.error = BadLogits(f"cannot choose {step}: {error}")
        return
    if token in sequence.end_ids:
        sequence.finish("stop")
        return
    if (n := sequence.sampler.params.logprobs) is not None:
        assert isinstance(logits, np.ndarray)
        del sequence.logprobs[sequence.n_new :]  # of a token that an interrupt has cut off
        sequence.logprobs.append(token_logprobs(logits, token, n))
    sequence.ids.append(token)


def score_prompt(rows: Rows, logits: List[np.ndarray | TopK]) -> None:
    """Note the log probabilities of the prompt's tokens behind each of `rows`, which all have logits."""
    sequence = rows.sequence
    n = sequence.sampler.params.prompt_logprobs or 0
    known = sequence.prompt_logprobs
    del known[rows.first + 1 :]  # of a step that an interrupt has cut off
    following = sequence.ids[rows.first + 1 : min(rows.first + 1 + rows.n, sequence.n_prompt)]
    for token, row in zip(following, logits, strict=False):  # behind the last there may be none
        assert isinstance(row, np.ndarray)
        known.append(token_logprobs(row, token, n))
