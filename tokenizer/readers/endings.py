"""The tokens that end an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..bpe.scored import TokenType
from ..strings import Strings

# Control tokens that close a turn or a text in the models that have them. A file rarely names all of
# its own: base vocabularies name the end of text only, chat models the end of turn only.
_KNOWN_TO_LLAMA_CPP = (
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|endoftext|>",
    "<|end_of_text|>",
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
    "<|calls|>",
    "<|flush|>",
    "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "[e~[",
)
_END_TOKENS = (
    *_KNOWN_TO_LLAMA_CPP,
    "<|eos|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<seed:eos>",
)
# Vocabularies in which "<|end|>" only closes one message of an answer: those of gpt-oss and Solar Open
_MESSAGES = (("<|return|>", "<|call|>"), ("<|flush|>", "<|calls|>"))
# Spellings of end tokens that other vocabularies have too, for HTML's strike-through (Gemma, Qwen)
_HTML = frozenset({"</s>"})


def end_ids(special_tokens: Mapping[str, int], *named: int | None) -> frozenset[int]:
    """The ids that the file names, and the well-known end tokens among its control tokens."""
    names = set(_END_TOKENS) - _unending(special_tokens)
    known = {special_tokens[name] for name in names if name in special_tokens}
    return frozenset(known | {id for id in named if id is not None})


def known_to_llama_cpp(spelling: str) -> bool:
    """Whether llama.cpp knows a token of this spelling as an end token, without being told."""
    return spelling in _KNOWN_TO_LLAMA_CPP


def with_end_marks(pieces: Sequence[str], types: np.ndarray) -> np.ndarray:
    """The types of a GGUF's tokens (TokenType, int [n]) with end tokens as CONTROL.

    Converters have typed them NORMAL or USER_DEFINED. As in llama.cpp, their spelling tells; but not that of
    "</s>", which is HTML in vocabularies whose end token is another one.
    """
    ids = spelled(pieces, _END_TOKENS)
    plain = [
        ids[name] for name in ids.keys() - _HTML - _unending(ids) if types[ids[name]] != TokenType.CONTROL
    ]
    if not plain:
        return types
    changed = types.copy()
    changed[plain] = TokenType.CONTROL
    return changed


def spelled(pieces: Sequence[str], names: Iterable[str]) -> dict[str, int]:
    """The ids of those of `names` that are among `pieces`, without a look at most of these."""
    if not isinstance(pieces, Strings):
        wanted = set(names)
        return {piece: id for id, piece in enumerate(pieces) if piece in wanted}
    by_bytes = {name.encode(): name for name in names}
    starts, stops, raw = pieces.starts, pieces.stops, pieces.raw
    fits = np.zeros(256, bool)
    fits[[name[-1] for name in by_bytes]] = True
    sizes = np.zeros(max(map(len, by_bytes)) + 1, bool)
    sizes[[len(name) for name in by_bytes]] = True
    candidates = np.flatnonzero(fits[raw[stops - 1]])
    lengths = stops[candidates] - starts[candidates]
    candidates = candidates[(lengths < len(sizes)) & sizes[np.minimum(lengths, len(sizes) - 1)]]
    blob, found = pieces.blob, dict[str, int]()
    for id in candidates.tolist():
        if (name := by_bytes.get(blob[starts[id] : stops[id]])) is not None:
            found[name] = id
    return found


def _unending(ids: Mapping[str, int]) -> set[str]:
    """End tokens that end no answer in a vocabulary with other ones."""
    return {"<|end|>"} if any(all(name in ids for name in names) for names in _MESSAGES) else set()
