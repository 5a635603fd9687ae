"""A tokenizer.json, or a tekken.json, as a Tokenizer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..added import AddedToken
from ..bpe.bpe import BPE
from ..bpe.ranks import merge_ranks, packed_ranks
from ..bpe.scored import byte_ids
from ..core import Tokenizer
from ..detokenize import Detokenizer
from ..errors import TokenizerError
from ..normalize import chain
from ..pieces.unigram import Unigram
from ..pieces.word_piece import LONGEST_WORD, WordPiece
from ..pretokenize.metaspace import PartsAtMetaspace, parts_at_metaspace
from ..pretokenize.pretokenize import PartsAtSpaces, Split, chain_steps, parts_at_spaces, spell_bytes
from ..strings import NO_ID, Lookup, PackedLookup, Replaced, Strings
from .components import check_components, decoder, kind, leaves_no_space, normalizers, steps, value
from .declared import with_declared
from .files import VOCABULARY_LIMITS, parse_object, read_file
from .packed_json import PackedVocabulary, read_packed
from .settings import LONGEST_PIECE, MAX_VOCAB, added_token, bounded, settings_of
from .tekken import tekken_tokenizer

MAX_WORD = 1 << 10  # characters of a word that a WordPiece vocabulary cuts


def tokenizer_from_json(
    path: Path, config: Mapping[str, Any], templates: Mapping[str, str], within: Path | None = None
) -> Tokenizer:
    """A tokenizer.json or tekken.json; `within` as for `files.read_file`."""
    try:
        raw = read_file(path, VOCABULARY_LIMITS.n_bytes, within)
    except FileNotFoundError:
        raise TokenizerError(f"{path}: no such file") from None
    packed = read_packed(raw)
    content = packed.rest if packed else parse_object(raw, path.name, VOCABULARY_LIMITS.n_marks)
    del raw
    if not content:
        raise TokenizerError(f"{path}: an empty object")
    try:
        if path.name.startswith("tekken") or ("model" not in content and "vocab" in content):
            return tekken_tokenizer(content, templates)
        return _build(content, packed, config, templates)
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from None
    except RecursionError:
        raise TokenizerError(f"{path}: nested too deeply") from None


def _build(
    content: Mapping[str, Any],
    packed: PackedVocabulary | None,
    config: Mapping[str, Any],
    templates: Mapping[str, str],
) -> Tokenizer:
    name, model = kind({"type": "BPE", **value(content, "model", dict)}, "model")
    check_components(content)
    if name in ("WordPiece", "Unigram"):
        return _of_pieces(name, model, content, config, templates)
    if name != "BPE":
        raise TokenizerError(f"unsupported model {name[:80]!a}; BPE, WordPiece and Unigram are supported")
    vocab: Lookup = PackedLookup(packed.pieces) if packed else Lookup(_valid(value(model, "vocab", dict)))
    added = added_tokens(content, config, vocab)
    pieces = _pieces(packed.pieces if packed else vocab, added)
    cutting = steps(content.get("pre_tokenizer"))
    if leaves_no_space(content.get("normalizer")):  # Gemma cuts at spaces that are no longer there
        cutting = [step for step in cutting if not (isinstance(step, Split) and step.source == r"\ ")]
    byte_level = bool(cutting) and cutting[-1] is spell_bytes
    if byte_level:
        cutting.pop()  # the model spells only the words that it has not seen before
    parts: PartsAtSpaces | PartsAtMetaspace | None = parts_at_spaces(cutting)
    if not cutting and not byte_level:
        texts = packed.pieces if packed else Strings.pack([*vocab])
        parts = parts_at_metaspace(texts) if texts else None
    normalizer = chain(normalizers(content.get("normalizer")))
    spelled = added
    if normalizer is not None:
        spelled = [replace(t, content=normalizer(t.content)) if t.normalized else t for t in added]
    if packed:
        ranks, joiner = packed_ranks(packed.merges, vocab, packed.pieces), " "
    else:
        ranks, joiner = _ranks(model, vocab)
    return Tokenizer(
        len(pieces),
        spelled,
        _bpe(model, vocab, ranks, joiner, byte_level),
        chain_steps(cutting),
        Detokenizer(pieces, **decoder(content.get("decoder"))),
        settings_of(config, added, templates, content.get("post_processor"), n_tokens=len(pieces)),
        normalizer,
        parts,
    )


def _of_pieces(
    name: str,
    model: Mapping[str, Any],
    content: Mapping[str, Any],
    config: Mapping[str, Any],
    templates: Mapping[str, str],
) -> Tokenizer:
    """A tokenizer without merges, as encoders have them."""
    words: WordPiece | Unigram
    if name == "WordPiece":
        vocab = Lookup(_valid(value(model, "vocab", dict)))
        words = _word_piece(model, vocab)
    else:
        scored = _scored(value(model, "vocab", list))
        vocab = Lookup((piece, id) for id, (piece, _) in enumerate(scored))
        unknown = model.get("unk_id")
        known = {piece: (id, score) for id, (piece, score) in enumerate(scored) if piece and id != unknown}
        in_bytes = byte_ids(vocab) if model.get("byte_fallback") else None
        words = Unigram(known, unknown if isinstance(unknown, int) else None, in_bytes)
    added = added_tokens(content, config, vocab)
    pieces = _pieces(vocab, added)
    normalizer = chain(normalizers(content.get("normalizer")))
    if normalizer is not None:
        added = [replace(t, content=normalizer(t.content)) if t.normalized else t for t in added]
    return Tokenizer(
        len(pieces),
        added,
        words,
        chain_steps(steps(content.get("pre_tokenizer"))),
        Detokenizer(pieces, **decoder(content.get("decoder"))),
        settings_of(config, added, templates, content.get("post_processor"), n_tokens=len(pieces)),
        normalizer,
    )


def _word_piece(model: Mapping[str, Any], vocab: Lookup) -> WordPiece:
    prefix = value(model, "continuing_subword_prefix", str, "##")
    unknown = vocab[value(model, "unk_token", str, "[UNK]")]
    if unknown == NO_ID or not prefix:
        raise TokenizerError("a WordPiece vocabulary without an unknown token or a prefix")
    continued = {piece[len(prefix) :]: id for piece, id in vocab.items() if piece.startswith(prefix)}
    longest = model.get("max_input_chars_per_word")
    most = longest if type(longest) is int and 0 < longest <= MAX_WORD else LONGEST_WORD
    return WordPiece(dict(vocab), continued, unknown, most)


def _scored(vocab: list[Any]) -> list[tuple[str, float]]:
    """The pieces of a unigram model with their scores."""
    if len(vocab) > MAX_VOCAB:
        raise TokenizerError(f"the vocabulary has {len(vocab)} entries; at most {MAX_VOCAB} are read")
    for entry in vocab:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
            raise TokenizerError("the vocabulary has an entry that is no piece with a score")
        if type(entry[1]) not in (int, float) or not math.isfinite(entry[1]) or len(entry[0]) > LONGEST_PIECE:
            raise TokenizerError(f"the token {entry[0][:80]!a} has no score, or is too long")
    return [(piece, float(score)) for piece, score in vocab]


def added_tokens(content: Mapping[str, Any], config: Mapping[str, Any], vocab: Lookup) -> list[AddedToken]:
    """The added tokens of a tokenizer.json and of the files beside it (`config`, of `read_settings`)."""
    own = bounded(added_token(item, vocab) for item in value(content, "added_tokens", list, []))

    def id_of(text: str) -> int | None:
        id = vocab[text]
        return None if id == NO_ID else id

    return with_declared(own, config, id_of)


def _valid(vocab: Mapping[str, int]) -> Mapping[str, int]:
    if len(vocab) > MAX_VOCAB:
        raise TokenizerError(f"the vocabulary has {len(vocab)} entries; at most {MAX_VOCAB} are read")
    if max(map(len, vocab), default=0) > LONGEST_PIECE:
        raise TokenizerError(f"a token of over {LONGEST_PIECE} characters")
    for piece, id in vocab.items():
        if type(id) is not int or not 0 <= id < MAX_VOCAB:
            raise TokenizerError(f"the token {piece[:80]!a} has no valid id")
    return vocab


def _pieces(vocab: Lookup | Strings, added: Iterable[AddedToken]) -> Sequence[str | None]:
    """The vocabulary by id, None for ids that it skips."""
    changes = {token.id: token.content for token in added}
    if isinstance(vocab, Strings):
        return Replaced(vocab, changes)
    by_id = {**{id: piece for piece, id in vocab.items()}, **changes}
    if not by_id:
        raise TokenizerError("the vocabulary is empty")
    return [by_id.get(id) for id in range(max(by_id) + 1)]


def _ranks(model: Mapping[str, Any], vocab: Lookup) -> tuple[Lookup, str]:
    """The merges as ranks, and what joins the pairs in them."""
    merges = value(model, "merges", list)
    joiner = "\0" if merges and isinstance(merges[0], list) else " "
    try:
        return merge_ranks(merges if joiner == " " else list(map(joiner.join, merges)), vocab, joiner), joiner
    except (TypeError, AttributeError):
        raise TokenizerError("merges are neither all pairs of texts nor all texts") from None


def _bpe(model: Mapping[str, Any], vocab: Lookup, ranks: Lookup, joiner: str, byte_level: bool) -> BPE:
    for unsupported in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(unsupported):
            raise TokenizerError(f"unsupported: {unsupported}")
    unknown = vocab[model["unk_token"]] if isinstance(model.get("unk_token"), str) else NO_ID
    return BPE(
        vocab,
        ranks,
        joiner,
        byte_level=byte_level,
        ignore_merges=bool(model.get("ignore_merges")),
        byte_ids=byte_ids(vocab) if model.get("byte_fallback") else None,
        unknown_id=None if unknown == NO_ID else unknown,
        fuse_unknown=bool(model.get("fuse_unk")),
    )
