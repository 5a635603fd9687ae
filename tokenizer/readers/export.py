"""A Hugging Face folder's tokenizer as `tokenizer.…` keys of a GGUF file.

Source of the keys: the GGUF specification; of what converters put there: llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..bpe.scored import TokenType
from ..core import Tokenizer
from ..errors import TokenizerError
from ..pretokenize.metaspace import SPACE
from ..pretokenize.pre_names import pre_name
from ..pretokenize.pretokenize import spell_bytes
from .components import kind, normalizers, steps, value
from .files import VOCABULARY_LIMITS, parse_object, read_file, read_object
from .hf import load_tokenizer
from .packed_json import read_packed
from .sentencepiece_file import SentencePieceFile
from .tekken import tekken_words

_UNREACHED = -10000.0  # score of what no merge makes
_PREFIX = "tokenizer.ggml."


def tokenizer_metadata(
    folder: Path, vocab_size: int, architecture: str, end_ids: Iterable[int] = ()
) -> dict[str, Any]:
    """The keys for the tokenizer in `folder`; texts as lists, scores float32, types int32.

    - `vocab_size`: rows of the embedding table. Ids that the tokenizer does not have are filled with unused
      tokens; ids beyond the table, which the model cannot read, are left out.
    - `architecture`: `general.architecture`, which decides between names that mean the same.
    - `end_ids`: what the model's configuration says ends an answer.

    Raises TokenizerError for tokenizers that the format has no way to describe.
    """
    tokenizer = load_tokenizer(folder)
    if (folder / "tokenizer.json").is_file():
        keys = _of_json(folder / "tokenizer.json", vocab_size, architecture)
    elif (folder / "tokenizer.model").is_file():
        keys = _of_model(folder / "tokenizer.model", tokenizer, vocab_size)
    else:
        keys = _of_tekken(folder / "tekken.json", vocab_size)
    keys |= _special(tokenizer, keys, end_ids)
    return {_PREFIX + key: found for key, found in keys.items()} | _templates(tokenizer.chat_templates)


def _of_json(path: Path, vocab_size: int, architecture: str) -> dict[str, Any]:
    raw = read_file(path, VOCABULARY_LIMITS.n_bytes, path.parent)
    packed = read_packed(raw)
    content = packed.rest if packed else parse_object(raw, path.name, VOCABULARY_LIMITS.n_marks)
    model = value(content, "model", dict)
    pieces: dict[int, str]
    if packed:
        pieces, merges = dict(enumerate(packed.pieces.tolist())), packed.merges.tolist()
    else:
        pieces = {id: piece for piece, id in value(model, "vocab", dict).items()}
        merges = [m if isinstance(m, str) else " ".join(m) for m in value(model, "merges", list)]
    added = value(content, "added_tokens", list, [])
    cutting = steps(content.get("pre_tokenizer"))
    normal = _normalizer_kinds(content.get("normalizer"))
    if cutting and spell_bytes in cutting:
        if set(normal) - {"NFC"}:
            raise TokenizerError(f"{path}: GGUF cannot express the normalizer {' and '.join(normal)}")
        pre = pre_name(cutting, "NFC" in normal, bool(model.get("ignore_merges")), architecture)
        tokens, types = _tokens(pieces, added, vocab_size)
        return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges}
    if not model.get("byte_fallback") or set(normal) - {"Prepend", "Replace"}:
        raise TokenizerError(f"{path}: GGUF cannot express this kind of BPE")
    tokens, types = _tokens(pieces, added, vocab_size, model.get("unk_token"))
    keys: dict[str, Any] = {"model": "gemma4" if architecture == "gemma4" else "llama", "pre": "default"}
    keys |= {"tokens": tokens, "scores": _scores(tokens, merges), "token_type": types}
    if architecture == "gemma4":
        return {**keys, "merges": merges, "add_space_prefix": False}
    return {**keys, "add_space_prefix": "Prepend" in normal or _puts_space(content.get("pre_tokenizer"))}


def _normalizer_kinds(spec: object) -> list[str]:
    """The types of normalisers, in order. TokenizerError for those that are not supported at all."""
    if spec is None:
        return []
    normalizers(spec)
    name, fields = kind(spec, "normalizer")
    if name != "Sequence":
        return [name]
    return [found for item in value(fields, "normalizers", list) for found in _normalizer_kinds(item)]


def _puts_space(spec: object) -> bool:
    """Whether a Metaspace pre-tokeniser puts a space in front of a text."""
    if spec is None:
        return False
    name, fields = kind(spec, "pre_tokenizer")
    if name == "Sequence":
        return any(_puts_space(item) for item in value(fields, "pretokenizers", list))
    never = fields.get("prepend_scheme") == "never" or fields.get("add_prefix_space") is False
    return name == "Metaspace" and not never


def _tokens(
    pieces: dict[int, str], added: Sequence[Any], vocab_size: int, unknown: object = None
) -> tuple[list[str], np.ndarray]:
    """Tokens and their types by id. `unknown`: in a SentencePiece vocabulary, what stands for unknown
    characters."""
    if max(pieces, default=0) >= vocab_size and not _are_added(pieces, added, vocab_size):
        raise TokenizerError(
            f"the tokenizer has {max(pieces) + 1} tokens, more than the model's {vocab_size} embeddings"
        )
    spaced = unknown is not None
    types = np.full(vocab_size, TokenType.UNUSED, np.int32)
    tokens = [f"[PAD{id}]" for id in range(vocab_size)]
    for id, piece in pieces.items():
        if id < vocab_size:
            tokens[id] = piece
            types[id] = TokenType.NORMAL
            if spaced and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
                types[id] = TokenType.BYTE
    ids = {piece: id for id, piece in pieces.items()} if added else {}
    for item in added:
        content = value(item, "content", str)
        id = ids.get(content, item.get("id"))
        if not isinstance(id, int) or not 0 <= id < vocab_size:
            continue
        special = item.get("special") is True
        types[id] = TokenType.CONTROL if special else TokenType.USER_DEFINED
        tokens[id] = content.replace(SPACE, " ") if spaced and not special else content
    if isinstance(unknown, str) and unknown in tokens:
        types[tokens.index(unknown)] = TokenType.UNKNOWN
    return tokens, types


def _are_added(pieces: dict[int, str], added: Sequence[Any], vocab_size: int) -> bool:
    """Whether all pieces that the model has no embedding for are added tokens."""
    contents = {item.get("content") for item in added if isinstance(item, dict)}
    return all(piece in contents for id, piece in pieces.items() if id >= vocab_size)


def _scores(tokens: Sequence[str], merges: Iterable[str]) -> np.ndarray:
    """The earlier a merge makes a token, the higher its score."""
    first: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        first.setdefault(merge.replace(" ", "", 1), rank)
    return np.array(
        [-first[token] if token in first else _UNREACHED - len(first) for token in tokens], np.float32
    )


def _of_model(path: Path, tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    file = SentencePieceFile(path, path.parent)
    scores, types = file.scores(), file.types()
    normal = types == TokenType.NORMAL
    if normal.any() and not np.array_equal(scores[normal], np.round(scores[normal])):
        raise TokenizerError(f"{path}: GGUF cannot express a unigram model")
    count = min(len(file.pieces), vocab_size)
    tokens = [f"[PAD{id}]" for id in range(vocab_size)]
    tokens[:count] = file.pieces[:count]
    all_types = np.full(vocab_size, TokenType.UNUSED, np.int32)
    all_types[:count] = types[:count]
    all_scores = np.full(vocab_size, _UNREACHED, np.float32)
    all_scores[:count] = scores[:count]
    for content, id in tokenizer.special_tokens.items():  # of tokenizer_config.json as well
        if id < vocab_size and all_types[id] != TokenType.UNKNOWN:
            tokens[id], all_types[id] = content, TokenType.CONTROL
    return {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": all_scores,
        "token_type": all_types,
        "add_space_prefix": file.has_dummy_prefix,
    }


def _of_tekken(path: Path, vocab_size: int) -> dict[str, Any]:
    """Any two neighbours that make an entry may join, so each way to make one is a merge, by its rank."""
    control, words = tekken_words(read_object(path, VOCABULARY_LIMITS, path.parent))
    known = set(words)
    merges = [
        f"{word[:i]} {word[i:]}"
        for word in words
        for i in range(1, len(word))
        if word[:i] in known and word[i:] in known
    ]
    tokens = [*control, *words][:vocab_size]
    types = np.full(vocab_size, TokenType.UNUSED, np.int32)
    types[: len(tokens)] = TokenType.NORMAL
    types[: len(control)] = TokenType.CONTROL
    tokens += [f"[PAD{id}]" for id in range(len(tokens), vocab_size)]
    return {"model": "gpt2", "pre": "tekken", "tokens": tokens, "token_type": types, "merges": merges}


def _special(tokenizer: Tokenizer, keys: Mapping[str, Any], end_ids: Iterable[int]) -> dict[str, Any]:
    """Begin and end tokens, and whether they go around a text."""
    count = len(keys["tokens"])
    types = keys["token_type"]
    found: dict[str, Any] = {}
    ends = [id for id in end_ids if 0 <= id < count]
    eos = tokenizer.eos_id if tokenizer.eos_id is not None else next(iter(ends), None)
    if tokenizer.bos_id is not None and tokenizer.bos_id < count:
        found["bos_token_id"] = tokenizer.bos_id
    if eos is not None and eos < count:
        found["eos_token_id"] = eos
    control = [id for id in ends if id != eos and types[id] == TokenType.CONTROL]
    if control:
        found["eot_token_id"] = control[0]
    unknown = np.flatnonzero(types == TokenType.UNKNOWN)
    if unknown.size:
        found["unknown_token_id"] = int(unknown[0])
    found["add_bos_token"] = tokenizer.add_bos and "bos_token_id" in found
    found["add_eos_token"] = tokenizer.add_eos and "eos_token_id" in found
    return found


def _templates(templates: Mapping[str, str]) -> dict[str, Any]:
    key = "tokenizer.chat_template"
    found: dict[str, Any] = {key: templates["default"]} if "default" in templates else {}
    others = [name for name in templates if name != "default"]
    if others:
        found[f"{key}s"] = others
    return found | {f"{key}.{name}": templates[name] for name in others}
