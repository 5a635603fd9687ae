"""Log probabilities in the shapes of OpenAI's API."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ...answers.events import TokenEvent
from ...engine.sampling.logprobs import TokenLogprobs
from ...model.model import Model

LEAST = -9999.0  # in place of a probability of 0, which JSON has no logarithm for


class TokenNames:
    """Writes tokens of a model as text and as bytes."""

    def __init__(self, model: Model) -> None:
        self._tokenizer = model.tokenizer

    def text(self, token: int) -> str:
        if self._tokenizer.is_special(token):
            return self._tokenizer.token_text(token)
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")

    def raw(self, token: int) -> bytes:
        if self._tokenizer.is_special(token):
            return self._tokenizer.token_text(token).encode()
        return self._tokenizer.token_bytes(token)

    def chat(self, events: Iterable[TokenEvent]) -> list[dict[str, Any]]:
        """The entries of `logprobs.content` of a chat completion."""
        found = []
        for event in events:
            if event.id is not None and event.logprobs is not None:
                top = [self._entry(token, logprob) for token, logprob in event.logprobs.top]
                found.append({**self._entry(event.id, event.logprobs.logprob), "top_logprobs": top})
        return found

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self.text(token), "logprob": finite(logprob), "bytes": list(self.raw(token))}

    def completion(
        self, tokens: Iterable[tuple[int, TokenLogprobs | None]], offset: int
    ) -> dict[str, list[Any]]:
        """The `logprobs` of a completion, whose first token begins at character `offset` of the text."""
        found: dict[str, list[Any]] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
        }  # fmt: skip
        for token, logprobs in tokens:
            text = self.text(token)
            found["tokens"].append(text)
            found["text_offset"].append(offset)
            offset += len(text)
            found["token_logprobs"].append(None if logprobs is None else finite(logprobs.logprob))
            top = None if logprobs is None else {self.text(t): finite(p) for t, p in logprobs.top}
            found["top_logprobs"].append(top)
        return found


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST
