"""Fill in the middle: the prompt of a model that writes what is missing between two texts.

Source: Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle"; the tokens are
those of the families' own model cards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import TokenizerError

if TYPE_CHECKING:
    from .core import Tokenizer

# The tokens in front of the prefix, the suffix and the middle, by family.
_SPELLINGS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, Qwen3-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    ("<PRE>", "<SUF>", "<MID>"),
)
_SUFFIX_FIRST = ("[SUFFIX]", "[PREFIX]")  # Codestral
# What comes behind a middle that is complete, where that is no end token.
_ENDS = (
    "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|endoftext|>", "<fim_pad>", "<file_sep>",
    "<|file_separator|>", "<EOT>", "\u2581<EOT>",
)  # fmt: skip


@dataclass(frozen=True)
class FimTokens:
    """The tokens in front of the prefix, the suffix and, in most families, the middle."""

    prefix: int
    suffix: int
    middle: int | None
    suffix_first: bool = False


def fim_tokens(tokenizer: Tokenizer) -> FimTokens | None:
    """The tokens of a vocabulary: those that its file names, or those of a known family; None for none."""
    if tokenizer.fim_ids is not None:
        return FimTokens(*tokenizer.fim_ids)
    ids = {token.content: token.id for token in tokenizer.added_tokens}
    for spellings in _SPELLINGS:
        if all(each in ids for each in spellings):
            prefix, suffix, middle = (ids[each] for each in spellings)
            return FimTokens(prefix, suffix, middle)
    if all(each in ids for each in _SUFFIX_FIRST):
        return FimTokens(ids["[PREFIX]"], ids["[SUFFIX]"], None, suffix_first=True)
    return None


def encode_fim(tokenizer: Tokenizer, name: str, prefix: str, suffix: str) -> list[int]:
    """The ids of a prompt behind which the model `name` writes what belongs between two texts.

    Control tokens written in them stay text. Raises TokenizerError for a model that has no tokens for this.
    """
    tokens = fim_tokens(tokenizer)
    if tokens is None:
        raise TokenizerError(f"{name} has no tokens for filling in the middle; code models have them")
    before, after = tokenizer.encode(prefix), tokenizer.encode(suffix)
    if tokens.suffix_first:
        ids = [tokens.suffix, *after, tokens.prefix, *before]
    else:
        ids = [tokens.prefix, *before, tokens.suffix, *after]
    return tokenizer.with_prefix([*ids, *(() if tokens.middle is None else (tokens.middle,))])


def fim_ends(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The special tokens that end a middle, spelled, beside the end tokens."""
    tokens = fim_tokens(tokenizer)
    own = {tokens.prefix, tokens.suffix, tokens.middle} if tokens else set()
    special = tokenizer.special_tokens
    return tuple(text for text, id_ in special.items() if text in _ENDS or id_ in own)
