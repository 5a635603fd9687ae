"""A Hugging Face folder's tokenizer as `tokenizer.…` keys of a GGUF file.

Source of the keys: the GGUF specification; of what converters put there: llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..added import AddedToken
from ..bpe.scored import TokenType
from ..core import Tokenizer
from ..errors import TokenizerError, listed
from ..pretokenize.metaspace import SPACE
from ..pretokenize.pre_names import pre_name
from ..pretokenize.pretokenize import spell_bytes
from ..strings import Lookup
from .components import kind, normalizers, steps, value
from .declared import read_settings
from .endings import known_to_llama_cpp
from .files import VOCABULARY_LIMITS, parse_object, read_file, read_object
from .gguf_keys import FLAGS, PREFIX, PREFIX_IDS, flag_key
from .hf import load_tokenizer
from .packed_json import read_packed
from .sentencepiece_file import SentencePieceFile
from .tekken import tekken_words
from .tokenizer_json import added_tokens as added_tokens_of_json
from .tokenizer_model import added_tokens as added_tokens_of_model

_UNREACHED = -10000.0  # score of what no merge makes


class TokenizerKeys(NamedTuple):
    """The keys of a file, and lines for the user about what is lost in it, or to other programs."""

    keys: dict[str, Any]
    notes: list[str]


class _Vocabulary(NamedTuple):
    """The keys of a vocabulary, the added tokens of all ids, and the tokens of ids without an embedding."""

    keys: dict[str, Any]
    added: list[AddedToken]
    left_out: list[str]


def tokenizer_metadata(
    folder: Path, vocab_size: int, architecture: str, end_ids: Iterable[int] = ()
) -> TokenizerKeys:
    """The keys for the tokenizer in `folder`; texts as lists, scores float32, types int32.

    - `vocab_size`: rows of the embedding table. Ids that the tokenizer does not have are filled with unused
      tokens; added tokens with ids beyond the table, which the model cannot read, are left out.
    - `architecture`: `general.architecture`, which decides between names that mean the same.
    - `end_ids`: what the model's configuration says ends an answer.

    Raises TokenizerError for tokenizers that the format has no way to describe.
    """
    tokenizer = load_tokenizer(folder)
    if (folder / "tokenizer.json").is_file():
        found = _of_json(folder, vocab_size, architecture)
    elif (folder / "tokenizer.model").is_file():
        found = _of_model(folder, vocab_size)
    else:
        found = _of_tekken(folder / "tekken.json", vocab_size)
    notes = []
    if found.left_out:
        notes.append(
            f"the model has {vocab_size} embeddings; tokens beyond them, which it cannot read, are left out: "
            + listed(found.left_out)
        )
    special, ends = _special(tokenizer, found.keys, end_ids)
    own = _own_keys(tokenizer, found.added, vocab_size)
    keys = {PREFIX + key: value for key, value in (found.keys | special).items()}
    return TokenizerKeys(
        keys | own | _templates(tokenizer.chat_templates), [*notes, *ends, *_notes_of_own(own, found.added)]
    )


def _own_keys(tokenizer: Tokenizer, added: Iterable[AddedToken], vocab_size: int) -> dict[str, Any]:
    """This program's keys, for what GGUF has none for."""
    keys: dict[str, Any] = {}
    begin = (tokenizer.bos_id,) if tokenizer.add_bos else ()
    if tokenizer.prefix_ids != begin and max(tokenizer.prefix_ids) < vocab_size:
        keys[PREFIX_IDS] = np.array(tokenizer.prefix_ids, np.int32)
    for flag in FLAGS:
        ids = sorted(token.id for token in added if getattr(token, flag) and token.id < vocab_size)
        if ids:
            keys[flag_key(flag)] = np.array(ids, np.int32)
    return keys


def _notes_of_own(own: Mapping[str, Any], added: Iterable[AddedToken]) -> list[str]:
    """Lines about what only this program reads."""
    contents = {token.id: token.content for token in added}

    def names(key: str) -> str:
        return listed([contents.get(id, str(id)) for id in own[key].tolist()])

    notes = []
    if PREFIX_IDS in own:
        notes.append(f"llama.cpp does not put {names(PREFIX_IDS)} in front of a text; the chat template may")
    what = {"lstrip": "in front of", "rstrip": "behind", "single_word": "next to"}
    for flag in FLAGS:
        if flag_key(flag) in own:
            kept = "letters" if flag == "single_word" else "white space"
            notes.append(
                f"llama.cpp does not know that {kept} {what[flag]} {names(flag_key(flag))} matter ({flag})"
            )
    return notes


def _of_json(folder: Path, vocab_size: int, architecture: str) -> _Vocabulary:
    path = folder / "tokenizer.json"
    raw = read_file(path, VOCABULARY_LIMITS.n_bytes, folder)
    packed = read_packed(raw)
    content = packed.rest if packed else parse_object(raw, path.name, VOCABULARY_LIMITS.n_marks)
    model = value(content, "model", dict)
    pieces: dict[int, str]
    if packed:
        pieces, merges = dict(enumerate(packed.pieces.tolist())), packed.merges.tolist()
    else:
        pieces = {id: piece for piece, id in value(model, "vocab", dict).items()}
        merges = [m if isinstance(m, str) else " ".join(m) for m in value(model, "merges", list)]
    ids = Lookup((piece, id) for id, piece in pieces.items())
    added = added_tokens_of_json(content, read_settings(folder), ids)
    cutting = steps(content.get("pre_tokenizer"))
    normal = _normalizer_kinds(content.get("normalizer"))
    if cutting and spell_bytes in cutting:
        if set(normal) - {"NFC"}:
            raise TokenizerError(f"{path}: GGUF cannot express the normalizer {' and '.join(normal)}")
        pre = pre_name(cutting, "NFC" in normal, bool(model.get("ignore_merges")), architecture)
        tokens, types = _tokens(pieces, added, vocab_size)
        keys: dict[str, Any] = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types}
        keys["merges"] = merges
        return _Vocabulary(keys, added, _beyond(pieces, added, vocab_size))
    if not model.get("byte_fallback") or set(normal) - {"Prepend", "Replace"}:
        raise TokenizerError(f"{path}: GGUF cannot express this kind of BPE")
    tokens, types = _tokens(pieces, added, vocab_size, model.get("unk_token"))
    keys = {"model": "gemma4" if architecture == "gemma4" else "llama", "pre": "default"}
    keys |= {"tokens": tokens, "scores": _scores(tokens, merges), "token_type": types}
    if architecture == "gemma4":
        keys |= {"merges": merges, "add_space_prefix": False}
    else:
        prefixed = "Prepend" in normal or _puts_space(content.get("pre_tokenizer"))
        keys["add_space_prefix"] = prefixed
    return _Vocabulary(keys, added, _beyond(pieces, added, vocab_size))


def _beyond(pieces: Mapping[int, str], added: Iterable[AddedToken], vocab_size: int) -> list[str]:
    """The tokens without an embedding."""
    found = {**pieces} | {token.id: token.content for token in added}
    return [found[id] for id in sorted(found) if id >= vocab_size]


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
    pieces: Mapping[int, str], added: Sequence[AddedToken], vocab_size: int, unknown: object = None
) -> tuple[list[str], np.ndarray]:
    """Tokens and their types by id. `unknown`: in a SentencePiece vocabulary, what stands for unknown
    characters."""
    contents = {token.content for token in added}
    if any(id >= vocab_size and piece not in contents for id, piece in pieces.items()):
        _check_size(max(pieces) + 1, vocab_size)
    spaced = unknown is not None
    types = np.full(vocab_size, TokenType.UNUSED, np.int32)
    tokens = [f"[PAD{id}]" for id in range(vocab_size)]
    for id, piece in pieces.items():
        if id < vocab_size:
            tokens[id] = piece
            types[id] = TokenType.NORMAL
            if spaced and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
                types[id] = TokenType.BYTE
    for token in added:
        if token.id < vocab_size:
            types[token.id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
            respelled = spaced and not token.special
            tokens[token.id] = token.content.replace(SPACE, " ") if respelled else token.content
    if isinstance(unknown, str) and unknown in tokens:
        types[tokens.index(unknown)] = TokenType.UNKNOWN
    return tokens, types


def _check_size(n_tokens: int, vocab_size: int) -> None:
    """TokenizerError for a vocabulary that must be that of another model."""
    if n_tokens > vocab_size:
        raise TokenizerError(
            f"the tokenizer has {n_tokens} tokens, more than the model's {vocab_size} embeddings"
        )


def _scores(tokens: Sequence[str], merges: Iterable[str]) -> np.ndarray:
    """The earlier a merge makes a token, the higher its score."""
    first: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        first.setdefault(merge.replace(" ", "", 1), rank)
    return np.array(
        [-first[token] if token in first else _UNREACHED - len(first) for token in tokens], np.float32
    )


def _of_model(folder: Path, vocab_size: int) -> _Vocabulary:
    path = folder / "tokenizer.model"
    file = SentencePieceFile(path, folder)
    scores, types = file.scores(), file.types()
    normal = types == TokenType.NORMAL
    if normal.any() and not np.array_equal(scores[normal], np.round(scores[normal])):
        raise TokenizerError(f"{path}: GGUF cannot express a unigram model")
    _check_size(len(file.pieces), vocab_size)
    count = len(file.pieces)
    tokens = [f"[PAD{id}]" for id in range(vocab_size)]
    tokens[:count] = file.pieces
    all_types = np.full(vocab_size, TokenType.UNUSED, np.int32)
    all_types[:count] = types
    all_scores = np.full(vocab_size, _UNREACHED, np.float32)
    all_scores[:count] = scores
    added = added_tokens_of_model(file, read_settings(folder))
    for token in added:  # of tokenizer_config.json as well
        if token.id < vocab_size and all_types[token.id] != TokenType.UNKNOWN:
            tokens[token.id] = token.content
            all_types[token.id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    keys = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": all_scores,
        "token_type": all_types,
        "add_space_prefix": file.has_dummy_prefix,
    }
    return _Vocabulary(keys, added, _beyond(dict(enumerate(file.pieces)), added, vocab_size))


def _of_tekken(path: Path, vocab_size: int) -> _Vocabulary:
    """Any two neighbours that make an entry may join, so each way to make one is a merge, by its rank."""
    control, words = tekken_words(read_object(path, VOCABULARY_LIMITS, path.parent))
    _check_size(len(control) + len(words), vocab_size)
    known = set(words)
    merges = [
        f"{word[:i]} {word[i:]}"
        for word in words
        for i in range(1, len(word))
        if word[:i] in known and word[i:] in known
    ]
    tokens = [*control, *words]
    types = np.full(vocab_size, TokenType.UNUSED, np.int32)
    types[: len(tokens)] = TokenType.NORMAL
    types[: len(control)] = TokenType.CONTROL
    tokens += [f"[PAD{id}]" for id in range(len(tokens), vocab_size)]
    keys = {"model": "gpt2", "pre": "tekken", "tokens": tokens, "token_type": types, "merges": merges}
    return _Vocabulary(keys, [], [])


def _special(
    tokenizer: Tokenizer, keys: Mapping[str, Any], end_ids: Iterable[int]
) -> tuple[dict[str, Any], list[str]]:
    """Begin and end tokens, and whether they go around a text; and a line about what llama.cpp will not see.

    Of several ends llama.cpp reads those in three keys and knows others by their spelling; a list of all is
    for Ollama and this program.
    """
    tokens, types = keys["tokens"], keys["token_type"]
    found: dict[str, Any] = {}
    named = dict.fromkeys(id for id in end_ids if 0 <= id < len(tokens))
    eos = tokenizer.eos_id if tokenizer.eos_id is not None else next(iter(named), None)
    if tokenizer.bos_id is not None and tokenizer.bos_id < len(tokens):
        found["bos_token_id"] = tokenizer.bos_id
    if eos is not None and eos < len(tokens):
        found["eos_token_id"] = eos
        named[eos] = None
    others = sorted((id for id in named if id != eos), key=lambda id: known_to_llama_cpp(tokens[id]))
    if others:
        found["eot_token_id"] = others[0]
    if len(others) > 1 and not known_to_llama_cpp(tokens[others[1]]):
        found["eom_token_id"] = others[1]
    if others:
        found["eos_token_ids"] = np.array(sorted(named), np.int32)
    unseen = [tokens[id] for id in others[2:] if not known_to_llama_cpp(tokens[id])]
    unknown = np.flatnonzero(types == TokenType.UNKNOWN)
    if unknown.size:
        found["unknown_token_id"] = int(unknown[0])
    found["add_bos_token"] = tokenizer.add_bos and "bos_token_id" in found
    found["add_eos_token"] = tokenizer.add_eos and "eos_token_id" in found
    return found, [f"llama.cpp does not stop at {listed(unseen)}"] if unseen else []


def _templates(templates: Mapping[str, str]) -> dict[str, Any]:
    key = "tokenizer.chat_template"
    found: dict[str, Any] = {key: templates["default"]} if "default" in templates else {}
    others = [name for name in templates if name != "default"]
    if others:
        found[f"{key}s"] = others
    return found | {f"{key}.{name}": templates[name] for name in others}
