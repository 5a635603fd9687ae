"""What becomes of a step's logits: the next tokens, those that follow from them, and log probabilities."""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from ..errors import BadLogits, ConstraintError
from ..sampling.logprobs import token_logprobs
from ..sampling.mask import Mask
from ..sampling.top_k import TopK
from .batching import Rows
from .constrained import ConstrainedAnswer
from .sequence import Sequence


def choose(rows: Rows, logits: List[np.ndarray | TopK], most_tokens: int) -> int:
    """Sample the next token of a sequence behind `rows`, or note why there is none.

    `logits` are those behind the sequence's last id and behind each drafted one. As long as a drafted id is
    the one that is sampled, and the sequence has fewer than `most_tokens` ids, the next is sampled too. If
    it is constrained, ids follow that its constraint forces. Returns how many drafted ids were right.
    """
    if rows.sequence.constrained is not None:
        return _choose_constrained(rows, logits, most_tokens, rows.sequence.constrained)
    for n_right, row in enumerate(logits):
        if not choose_one(rows, row, n_right) or _draft_ends(rows, n_right, most_tokens):
            return n_right
    return 0


def _draft_ends(rows: Rows, n_right: int, most_tokens: int) -> bool:
    """Whether the logits behind the next drafted id are of no use."""
    sequence = rows.sequence
    if n_right == len(rows.drafted) or sequence.ids[-1] != rows.drafted[n_right]:
        return True
    return sequence.n_new == sequence.sampler.params.max_tokens or len(sequence.ids) >= most_tokens


def _choose_constrained(
    rows: Rows, logits: List[np.ndarray | TopK], most_tokens: int, constrained: ConstrainedAnswer
) -> int:
    """`choose` for a sequence whose answer must have a form."""
    sequence, n_right = rows.sequence, 0
    try:
        for (n_right, row), mask in zip(enumerate(logits), constrained.masks(), strict=True):
            if not choose_one(rows, row, n_right, mask):
                break
            constrained.accept(sequence.ids[-1])
            if constrained.ended or _draft_ends(rows, n_right, most_tokens):
                _append_forced(sequence, constrained, most_tokens)
                break
        sequence.stats.complete = constrained.complete
        if constrained.ended:
            sequence.finish("stop")
    except ConstraintError as error:
        sequence.error = error
    return n_right


def _append_forced(sequence: Sequence, constrained: ConstrainedAnswer, most_tokens: int) -> None:
    """Go on with the ids that must follow, for which no step is needed but that which reads them."""
    most_new = sequence.sampler.params.max_tokens
    if sequence.sampler.params.logprobs is not None:  # which need logits for each token
        return
    for token in constrained.forced():
        if token in sequence.end_ids or sequence.n_new == most_new or len(sequence.ids) >= most_tokens:
            return
        sequence.ids.append(token)
        constrained.accept(token)


def choose_one(rows: Rows, logits: np.ndarray | TopK, n_before: int, mask: Mask | None = None) -> bool:
    """Sample a token, `n_before` rows behind the first with logits; False if the sequence ends instead."""
    sequence = rows.sequence
    try:
        token = sequence.sampler.sample(logits, sequence.ids, mask)
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
