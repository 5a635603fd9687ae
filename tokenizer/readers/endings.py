"""The tokens that end an answer."""

from __future__ import annotations

from collections.abc import Mapping

# Control tokens that close a turn or a text in the models that have them. A file rarely names all of
# its own: base vocabularies name the end of text only, chat models the end of turn only.
_END_TOKENS = (
    "</s>",
    "<eos>",
    "<|eos|>",
    "<EOT>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<seed:eos>",
    "[e~[",
)
_HARMONY = ("<|return|>", "<|call|>")


def end_ids(special_tokens: Mapping[str, int], *named: int | None) -> frozenset[int]:
    """The ids that the file names, and the well-known end tokens among its control tokens.

    In the vocabulary of gpt-oss "<|end|>" only closes one message of an answer.
    """
    names = set(_END_TOKENS)
    if all(name in special_tokens for name in _HARMONY):
        names.remove("<|end|>")
    known = {special_tokens[name] for name in names if name in special_tokens}
    return frozenset(known | {id for id in named if id is not None})
