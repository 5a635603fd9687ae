"""Vectors of texts: prompts and special tokens around them, their ids, and the vectors of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from ..embedding.embedder import BATCH_TOKENS, embed
from ..embedding.settings import EmbeddingSettings
from ..embedding.stages import Normalize
from ..engine.errors import ContextExceeded
from .source import Source

if TYPE_CHECKING:
    from .model import Model


class VectorKeywords(TypedDict, total=False):
    """The options of `Model.embed`."""

    prompt: str | None
    dimensions: int | None
    truncate: bool
    pooling: str | None
    normalize: bool | None


class TextVectors:
    """Makes vectors of texts with a model whose program ends with hidden states.

    `settings` are those of the model's files, or the default ones: the last token of a model whose tokens see
    what is in front of them, else the mean of all, scaled to unit length.
    """

    def __init__(self, model: Model, source: Source) -> None:
        self._model = model
        self.settings = source.embedding or EmbeddingSettings(pooling=("lasttoken",))

    def embed(
        self,
        texts: Sequence[str],
        prompt: str | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
        pooling: str | None = None,
        normalize: bool | None = None,
    ) -> np.ndarray:
        """See `Model.embed`."""
        settings, hidden = self.settings.changed(pooling, normalize), self._model.config.hidden
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
            vectors[done : done + len(batch)] = embed(self._model.engine, batch, settings, hidden, skips)
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
        model, tokenizer = self._model, self._model.tokenizer
        ids = tokenizer.encode(text.lower() if settings.lowercase else text)
        before, behind = tokenizer.prefix_ids, tokenizer.suffix_ids
        most = min(model.context, settings.max_tokens or model.context)
        room = most - len(before) - len(behind)
        if len(ids) > room:
            if not truncate:
                raise ContextExceeded(
                    f"text {index + 1} has {len(ids) + len(before) + len(behind)} tokens, but the model takes "
                    f"{most}; truncation is not asked for"
                )
            ids = ids[: max(0, room)]
        return model.embedded([*before, *ids, *behind])

    def _prompt_tokens(self, prompt: str) -> int:
        """The tokens of a prompt with what is in front of it, as they begin a text."""
        tokenizer = self._model.tokenizer
        return len(tokenizer.prefix_ids) + len(tokenizer.encode(prompt))
