"""Filling in the middle: prompts of a beginning and an end, for models that were trained on such (Bavarian et
al. 2022, "Efficient Training of Language Models to Fill in the Middle")."""

from __future__ import annotations

from ..model.model import Model

# Tokens in front of the beginning, of the end, and of the middle, which the model writes.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, Granite
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SmolLM
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<PRE>", "<SUF>", "<MID>"),  # Code Llama
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
)


def fill_ids(model: Model, beginning: str, end: str) -> list[int]:
    """The ids of a prompt whose answer stands between `beginning` and `end`. ValueError if the model's
    vocabulary has no tokens for that."""
    tokenizer = model.tokenizer
    for marks in _MARKS:
        found = [tokenizer.encode(mark, special=True) for mark in marks]
        if all(len(ids) == 1 for ids in found):
            before, behind, between = (ids[0] for ids in found)
            ids = [before, *tokenizer.encode(beginning), behind, *tokenizer.encode(end), between]
            return model.embedded(tokenizer.with_prefix(ids))
    raise ValueError(f"{model.name} was not trained to fill in the middle, so that suffix is not supported")
