"""What becomes of a step's logits: the next tokens, and the log probabilities that were asked for."""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from ..errors import BadLogits
from ..sampling.logprobs import token_logprobs
from ..sampling.top_k import TopK
from .batching import Rows


def choose(rows: Rows, logits: List[np.ndarray | TopK], most_tokens: int) -> int:
    """Sample the next token of a sequence behind `rows`, or note why there is none.

    `logits` are those behind the sequence's last id and behind each drafted one. As long as a drafted id is
    the one that is sampled, and the sequence has fewer than `most_tokens` ids, the next is sampled too.
    Returns how many drafted ids were right.
    """
    sequence = rows.sequence
    most_new = sequence.sampler.params.max_tokens
    for n_right, row in enumerate(logits):
        if not _choose_one(rows, row, n_right):
            return n_right
        if n_right == len(rows.drafted) or sequence.ids[-1] != rows.drafted[n_right]:
            return n_right
        if sequence.n_new == most_new or len(sequence.ids) >= most_tokens:
            return n_right
    return 0


def _choose_one(rows: Rows, logits: np.ndarray | TopK, n_before: int) -> bool:
    """Sample a token, `n_before` rows behind the first with logits; False if the sequence ends instead."""
    sequence = rows.sequence
    try:
        token = sequence.sampler.sample(logits, sequence.ids)
    except BadLogits as error:
        position = rows.first + rows.n - len(rows.drafted) + n_before
        step = f"token {sequence.n_new + 1} of the answer (position {position})"
        sequence.error = BadLogits(f"cannot choose {step}: {error}")
        return False
    if token in sequence.end_ids:
        sequence.finish("stop")
        return False
    if (n := sequence.sampler.params.logprobs) is not None:
        assert isinstance(logits, np.ndarray)
        del sequence.logprobs[sequence.n_new :]  # of a token that an interrupt has cut off
        sequence.logprobs.append(token_logprobs(logits, token, n))
    sequence.ids.append(token)
    return True


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
