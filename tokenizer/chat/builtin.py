"""Chat templates for models that ship none, by what their vocabulary and their name tell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..core import Tokenizer

# Words in a name that tell whether a model was taught to answer; "base" outweighs the others.
_CHAT = (
    r"instruct\w*|inst|chat|it|sft|dpo|orpo|rlhf|assistant|think|thinking|reasoning|r1|qwq|tulu|zephyr|"
    r"magistral|devstral|dolphin|\w*hermes"
)
_BASE = r"base|pretrain\w*|gemma[\w. -]*-pt"


@dataclass(frozen=True)
class Family:
    """A family's template (Jinja source) and how the family is recognised.

    tokens     spellings that are one token each in its vocabulary
    named      a pattern that the model's name or architecture has
    turn_end   the end token of its chat models, where its base models have another
    chat_only  all of its models chat but those that are called base
    """

    name: str
    template: str
    tokens: tuple[str, ...] = ()
    named: str = ""
    turn_end: str = ""
    chat_only: bool = False


def builtin_template(tokenizer: Tokenizer, names: Iterable[str], ends: Iterable[int]) -> Family | None:
    """The first family whose vocabulary and name a model has that ships no chat template.

    `names` is all that the model is called: its name, file, folder, architecture; `ends` the end tokens that
    its files name. None for unknown families, and for a model that does not say by one of these that it was
    taught to hold conversations: a base model often has the family's tokens too.
    """
    said = " ".join(names).lower().replace("_", "-")
    if _has(_BASE, said):
        return None
    from .families import FAMILIES

    stops = {tokenizer.token_text(id) for id in ends if 0 <= id < tokenizer.vocab_size}
    for family in FAMILIES:
        if family.named and not _has(family.named, said):
            continue
        if all(len(tokenizer.encode(token, special=True)) == 1 for token in family.tokens):
            taught = family.chat_only or _has(_CHAT, said) or family.turn_end in stops
            return family if taught else None
    return None


def _has(pattern: str, text: str) -> bool:
    return re.search(rf"(?<![a-z0-9])(?:{pattern})(?![a-z0-9])", text) is not None
