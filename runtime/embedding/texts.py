"""Vectors of texts: prompts and special tokens around them, their ids, and the vectors of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypedDict

import numpy as np

from ...tokenizer import Tokenizer
from ..engine.engine import Engine
from ..engine.errors import ContextExceeded
from .embedder import BATCH_TOKENS, embed
from .settings import EmbeddingSettings
from .stages import Normalize

_SHOWN = 30  # characters of a text in a message


class VectorKeywords(TypedDict, total=False):
    """The options of `Model.embed`."""

    prompt: str | None
    dimensions: int | None
    truncate: bool
    pooling: str | None
    normalize: bool | None


class TextVectors:
    """Makes vectors of texts with a model whose program ends with hidden states.

    `engine` runs it, and its hidden states have `hidden` numbers. `check` is called with the ids of each
    text; it returns them if the model has embeddings for all of them, and else raises TokenizerError.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        settings: EmbeddingSettings,
        hidden: int,
        check: Callable[[list[int]], list[int]],
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._check = check
        self.settings = settings

    def embed(
        self,
        texts: Sequence[str],
        prompt: str | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
        pooling: str | None = None,
        normalize: bool | None = None,
    ) -> np.ndarray:
        """float32 [texts, dimensions]: a vector of each text.

        - `prompt`: the name of the prompt of the model's files that is put in front of each text.
        - `dimensions`: keep only so many, the first ones, and scale what is left to unit length (Matryoshka).
        - `truncate`: cut texts that are too long, instead of raising ContextExceeded.
        - `pooling`, `normalize`: what the files say, if they are None.

        Raises ValueError for options out of range, TypeError, ContextExceeded, TokenizerError and BadLogits.
        """
        settings, hidden = self.settings.changed(pooling, normalize), self._hidden
        width = settings.width(hidden)
        if dimensions is not None and not 1 <= dimensions <= width:
            raise ValueError(f"the model's vectors have {width} dimensions, not {dimensions}")
        if any(not isinstance(text, str) for text in texts):
            raise TypeError("`embed` takes texts")
        start = settings.prompt(prompt)
        n_start = self._prompt_tokens(start) if settings.skip_prompt and start else 0
        vectors = np.empty((len(texts), width), np.float32)
        done = 0
        for batch in self._batches(texts, start, settings, truncate):
            skips = [n_start] * len(batch)
            vectors[done : done + len(batch)] = embed(self._engine, batch, settings, hidden, skips)
            done += len(batch)
        if dimensions is None or dimensions == width:
            return vectors
        cut = vectors[:, :dimensions]
        return Normalize()(cut) if settings.normalized else np.ascontiguousarray(cut)

    def _batches(
        self, texts: Sequence[str], start: str, settings: EmbeddingSettings, truncate: bool
    ) -> Iterable[list[list[int]]]:
        """The ids of the texts, in parts of about BATCH_TOKENS tokens."""
        batch, n = list[list[int]](), 0
        for i, text in enumerate(texts):
            ids = self._ids(start + text, settings, truncate, i)
            batch.append(ids)
            n += len(ids)
            if n >= BATCH_TOKENS:
                yield batch
                batch, n = [], 0
        if batch:
            yield batch

    def _ids(self, text: str, settings: EmbeddingSettings, truncate: bool, index: int) -> list[int]:
        """The ids of one text, with what the tokenizer puts around it."""
        tokenizer, context = self._tokenizer, self._engine.context
        ids = tokenizer.encode(text.lower() if settings.lowercase else text)
        before, behind = tokenizer.prefix_ids, tokenizer.suffix_ids
        most = min(context, settings.max_tokens or context)
        room = most - len(before) - len(behind)
        if len(ids) > room:
            if not truncate or room < 0:
                n, limit = (
                    len(ids) + most - room,
                    f"but the model takes {most}; cut it (truncate), or split it",
                )
                raise ContextExceeded(f"text {index + 1} ({_beginning(text)}) has {n} tokens, {limit}")
            ids = ids[: max(0, room)]
        whole = [*before, *ids, *behind]
        if not whole:
            raise ValueError(f"text {index + 1} is empty, and the model puts no token around a text")
        return self._check(whole)

    def _prompt_tokens(self, prompt: str) -> int:
        """The tokens of a prompt with what is in front of it, as they begin a text."""
        tokenizer = self._tokenizer
        return len(tokenizer.prefix_ids) + len(tokenizer.encode(prompt))


def _beginning(text: str) -> str:
    """The beginning of a text for a message."""
    return ascii(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!a} …"
