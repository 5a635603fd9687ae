"""Scores of documents for a query: by a head over both, or by a model that answers yes or no.

Zhang et al. 2025, "Qwen3 Embedding" (yes or no).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...quant.errors import UnsupportedModel
from ...tokenizer import Tokenizer
from ..engine.engine import Engine
from ..engine.errors import ContextExceeded
from .embedder import BATCH_TOKENS, embed
from .heads import ScoringHead
from .stages import sigmoid

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# The conversation that Qwen3-Reranker was trained with; its answer is a single word.
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_ANSWERS = ("no", "yes")


class Reranker:
    """Scores documents with a model; `head` is that of a cross-encoder, None for one that answers yes or no.

    `hidden` is the width of its hidden states; `check` as for TextVectors.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        head: ScoringHead | None,
        hidden: int,
        check: Callable[[list[int]], list[int]],
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._head = head
        # Heads on Qwen3-Reranker stand for its words yes and no, and read the same conversation.
        self._is_told = head is None or (
            head.settings.pooling == ("lasttoken",) and "<|im_start|>" in tokenizer.special_tokens
        )
        self._hidden = hidden
        self._check = check

    def scores(
        self, query: str, documents: Sequence[str], instruction: str | None = None, truncate: bool = False
    ) -> np.ndarray:
        """float32 [documents]: how well each document answers the query, more is better.

        From 0 to 1, but for cross-encoders whose files ask for logits. `instruction`: what a document must
        do, for models that answer yes or no. With `truncate`, documents that are too long are cut. Raises
        ContextExceeded, UnsupportedModel for a model that cannot do it, TypeError, and what `embed` raises.
        """
        if isinstance(documents, str) or not all(isinstance(text, str) for text in (query, *documents)):
            raise TypeError("`rerank` takes a query and a list of documents")
        score = self._by_answers if self._head is None else self._by_head
        scores, batch, n = list[np.ndarray](), list[tuple[list[int], list[int]]](), 0
        for i, document in enumerate(documents):
            batch.append(self._pair(query, document, instruction, truncate, i))
            n += len(batch[-1][0])
            if n >= BATCH_TOKENS:
                scores.append(score(batch))
                batch, n = [], 0
        scores.append(score(batch))
        return np.concatenate(scores).astype(np.float32)

    def _pair(
        self, query: str, document: str, instruction: str | None, truncate: bool, index: int
    ) -> tuple[list[int], list[int]]:
        """Ids and token types of the query and document number `index`."""
        tokenizer, most = self._tokenizer, self._engine.context
        if not self._is_told:
            first, own = tokenizer.encode(query), tokenizer.encode(document)
            n = len(tokenizer.pair(first, [])[0])
        else:
            before, behind = (tokenizer.encode(part, special=True) for part in (_BEFORE, _BEHIND))
            body = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
            own, n = tokenizer.encode(body), len(before) + len(behind)
        if n + len(own) > most:
            if not truncate or n >= most:
                limit = f"but the model takes {most}; cut it (truncate), or split it"
                raise ContextExceeded(
                    f"the query with document {index + 1} has {n + len(own)} tokens, {limit}"
                )
            own = own[: most - n]
        if self._is_told:
            ids = [*before, *own, *behind]
            return self._check(ids), [0] * len(ids)
        ids, types = tokenizer.pair(first, own)
        return self._check(ids), types

    def _by_head(self, batch: list[tuple[list[int], list[int]]]) -> np.ndarray:
        head = self._head
        assert head
        if head.n_labels > 2:
            raise UnsupportedModel(f"the model has {head.n_labels} labels, and no score")
        texts, types = [ids for ids, _ in batch], [types for _, types in batch]
        logits = embed(self._engine, texts, head.settings, self._hidden, types=types)
        if head.n_labels == 2:  # of a model with two labels the first is yes
            return _first_of_two(logits)
        return sigmoid(logits[:, 0]) if head.bounded else logits[:, 0]

    def _by_answers(self, batch: list[tuple[list[int], list[int]]]) -> np.ndarray:
        no, yes = self._answer_ids()
        logits = np.zeros((len(batch), 2), np.float32)

        def take(index: int, position: int, rows: np.ndarray) -> None:
            logits[index] = rows[0, yes], rows[0, no]

        self._engine.read([ids for ids, _ in batch], "last", take)
        return _first_of_two(logits)

    def _answer_ids(self) -> tuple[int, int]:
        """The tokens of no and yes. Raises UnsupportedModel for a vocabulary without them."""
        found = [self._tokenizer.encode(answer) for answer in _ANSWERS]
        if "<|im_start|>" not in self._tokenizer.special_tokens or any(len(ids) != 1 for ids in found):
            raise UnsupportedModel(
                "the model is no reranker: it has no head for scores, and is not Qwen3-Reranker"
            )
        return found[0][0], found[1][0]


def _first_of_two(logits: np.ndarray) -> np.ndarray:
    """The probability of the first of two labels, float32 [n] of [n, 2]."""
    return sigmoid(logits[:, 0] - logits[:, 1])
