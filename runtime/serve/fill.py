"""Prompts of a beginning and an end, as requests with a `suffix` have them."""

from __future__ import annotations

from ...tokenizer.fim import fim_tokens
from ..model.model import Model


def fill_ids(model: Model, beginning: str, end: str) -> list[int]:
    """The ids of a prompt whose answer stands between `beginning` and `end`. ValueError if the model's
    vocabulary has no tokens for that."""
    if fim_tokens(model.tokenizer) is None:
        text = "was not trained to fill in the middle, so that suffix is not supported"
        raise ValueError(f"{model.name} {text}")
    return model.encode_fim(beginning, end)
