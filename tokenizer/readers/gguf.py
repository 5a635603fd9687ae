"""Tokenizers inside GGUF files, from the `tokenizer.…` keys of their metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as with_fields
from typing import Any

import numpy as np

from ..added import AddedToken
from ..bpe.bpe import BPE
from ..bpe.ranks import merge_ranks, packed_ranks
from ..bpe.scored import TokenType, bpe_from_scores, byte_ids
from ..core import Tokenizer, TokenizerSettings
from ..detokenize import Detokenizer
from ..errors import TokenizerError
from ..normalize import chain, prepend, replace, unicode_form
from ..pieces.bert import bert_normalizers, cut_words
from ..pieces.charsmap import charsmap
from ..pieces.unigram import Unigram
from ..pieces.word_piece import WordPiece
from ..pretokenize.metaspace import SPACE, parts_at_metaspace
from ..pretokenize.presets import SPACED, preset
from ..pretokenize.pretokenize import Split, chain_steps, metaspace, no_step, parts_at_spaces
from ..strings import Lookup, PackedLookup, Strings
from .endings import end_ids, with_end_marks
from .gguf_keys import (
    FLAGS,
    PREFIX,
    PREFIX_IDS,
    array,
    flag,
    flag_key,
    text,
    texts,
    token_id,
    token_ids,
    token_types,
)
from .settings import MAX_VOCAB, bounded, check_added

_PHI3_KEEPS_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})  # the white space behind them


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer described by a GGUF's metadata (string arrays as lists or
    `Packed`, numeric arrays as NumPy arrays).

    `tokenizer.ggml.model` "gpt2" is byte-level BPE with the pre-tokeniser that `tokenizer.ggml.pre` names,
    "llama" is SentencePiece's BPE. End tokens that are not typed as control tokens count as such, and special
    ids that are no tokens as not there, as in llama.cpp. Where the original tokenizer normalises its text
    (Qwen: NFC) this does too, unlike llama.cpp. TokenizerError if keys are missing, of the wrong type or
    inconsistent, or for other models.
    """
    model = text(metadata, "model")
    pieces = texts(metadata, "tokens")
    if not pieces:
        raise TokenizerError(f"{PREFIX}tokens is empty")
    if len(pieces) > MAX_VOCAB:
        raise TokenizerError(f"{PREFIX}tokens has {len(pieces)} entries; at most {MAX_VOCAB} are read")
    types = with_end_marks(pieces, token_types(metadata, len(pieces)))
    spaced = model == "gemma4" or text(metadata, "pre", "default") in SPACED
    if spaced and model in ("gpt2", "gemma4"):
        return _spaced_bpe(metadata, pieces, types)
    if model == "gpt2":
        return _byte_level(metadata, pieces, types)
    if model == "llama":
        return _sentencepiece(metadata, pieces, types)
    if model == "bert":
        return _word_piece(metadata, pieces, types)
    if model == "t5":
        return _unigram(metadata, pieces, types)
    raise TokenizerError(
        f"unsupported tokenizer.ggml.model {model[:80]!a}; gpt2, llama, gemma4, bert and t5 are supported"
    )


def _byte_level(metadata: Mapping[str, Any], pieces: Sequence[str], types: np.ndarray) -> Tokenizer:
    pre = preset(text(metadata, "pre", "default"))
    vocab, ranks = _vocabulary(pieces, types, texts(metadata, "merges"))
    steps = pre.steps()
    return Tokenizer(
        len(pieces),
        _added(metadata, pieces, types),
        BPE(vocab, ranks, " ", byte_level=pre.byte_level_words, ignore_merges=pre.ignore_merges),
        chain_steps(steps),
        Detokenizer(pieces, byte_level=True),
        _settings(metadata, pieces, types, add_bos=pre.add_bos),
        unicode_form("NFC") if pre.nfc else None,
        parts_at_spaces(steps),
    )


def _vocabulary(pieces: Sequence[str], types: np.ndarray, merges: Sequence[str]) -> tuple[Lookup, Lookup]:
    """Ids by piece, but for those that ordinary text never becomes, and ranks of merges."""
    usable = ~np.isin(types, (TokenType.CONTROL, TokenType.UNUSED))
    if isinstance(pieces, Strings) and isinstance(merges, Strings):
        packed = PackedLookup(pieces, usable=usable.tobytes())
        return packed, packed_ranks(merges, packed, pieces)
    vocab = Lookup(zip(pieces, range(len(pieces)), strict=True))
    ranks = merge_ranks([*merges], vocab, " ")
    for id in np.flatnonzero(~usable).tolist():
        vocab.pop(pieces[id], None)
    return vocab, ranks


def _sentencepiece(metadata: Mapping[str, Any], pieces: Sequence[str], types: np.ndarray) -> Tokenizer:
    scores = array(metadata, "scores", len(pieces))
    if scores.dtype.kind != "f":
        raise TokenizerError(f"{PREFIX}scores are {scores.dtype} and should be float32")
    packed = pieces if isinstance(pieces, Strings) else Strings.pack(pieces)
    if packed is None:
        raise TokenizerError(f"{PREFIX}tokens has an entry with a NUL character")
    added, respelled = _runs_of_spaces(_added(metadata, pieces, types))
    prefix = flag(metadata, "add_space_prefix", True)
    normalizers = [replace(" ", SPACE)]
    if prefix:
        normalizers.insert(0, prepend(SPACE))
    return Tokenizer(
        len(pieces),
        added,
        bpe_from_scores(packed, scores, types, respelled),
        no_step,
        Detokenizer(pieces, byte_fallback=True, replacements=[(SPACE, " ")], strip_space=prefix),
        _settings(metadata, pieces, types, add_bos=True),
        chain(normalizers),
        parts_at_metaspace(packed),
    )


def _word_piece(metadata: Mapping[str, Any], pieces: Sequence[str], types: np.ndarray) -> Tokenizer:
    """BERT's: pieces that begin a word are spelled with U+2581 in front, and the others without "##"."""
    control = {pieces[i]: i for i in np.flatnonzero(types == TokenType.CONTROL).tolist()}
    starts = {piece[1:]: i for i, piece in enumerate(pieces) if piece[:1] == SPACE}
    continued = {piece: i for i, piece in enumerate(pieces) if piece[:1] != SPACE and piece not in control}
    notes: list[str] = []
    unknown, cls, sep, eos = (
        token_id(metadata, f"{name}_token_id", len(pieces), notes)
        for name in ("unknown", "cls", "seperator", "eos")  # the key is spelled that way
    )
    unknown = control.get("[UNK]", 0) if unknown is None else unknown
    cls = control.get("[CLS]") if cls is None else cls
    sep = next((id for id in (sep, control.get("[SEP]"), eos) if id is not None), None)
    before, behind = (tuple(id for id in (each,) if id is not None) for each in (cls, sep))
    settings = _settings(metadata, pieces, types, add_bos=False)
    pair = ((before, 0), ("A", 0), (behind, 0), ("B", 1), (behind, 1))
    return Tokenizer(
        len(pieces),
        _added(metadata, pieces, types),
        WordPiece(starts, continued, unknown),
        cut_words,
        Detokenizer(pieces, replacements=[(SPACE, " ")], strip_space=True),
        with_fields(settings, prefix_ids=before, suffix_ids=behind, pair=pair),
        chain(bert_normalizers(True, True, True, True)),
    )


def _unigram(metadata: Mapping[str, Any], pieces: Sequence[str], types: np.ndarray) -> Tokenizer:
    """SentencePiece's unigram model, as XLM-RoBERTa has it."""
    scores = array(metadata, "scores", len(pieces)).tolist()
    usable = np.isin(types, (TokenType.NORMAL, TokenType.USER_DEFINED)).tolist()
    scored = {piece: (i, scores[i]) for i, piece in enumerate(pieces) if usable[i] and piece}
    unknown = np.flatnonzero(types == TokenType.UNKNOWN)
    table = metadata.get(f"{PREFIX}precompiled_charsmap")
    normalizers = [charsmap(table.astype(np.uint8).tobytes())] if isinstance(table, np.ndarray) else []
    prefix = flag(metadata, "add_space_prefix", True)
    spaced = [metaspace(SPACE, "always" if prefix else "never", True)]
    if flag(metadata, "remove_extra_whitespaces", False):
        spaced.insert(0, Split(r"\s+", "Removed"))
    settings = _settings(metadata, pieces, types, add_bos=False)
    begin, end = (tuple(id for id in (id_,) if id is not None) for id_ in (settings.bos_id, settings.eos_id))
    pair = ((begin if settings.add_bos else (), 0), ("A", 0), (end * 2, 0), ("B", 0), (end, 0))
    return Tokenizer(
        len(pieces),
        _added(metadata, pieces, types),
        Unigram(scored, int(unknown[0]) if unknown.size else None),
        chain_steps(spaced),
        Detokenizer(pieces, replacements=[(SPACE, " ")], strip_space=prefix),
        with_fields(settings, add_eos=settings.eos_id is not None, suffix_ids=end, pair=pair),
        chain(normalizers),
    )


def _runs_of_spaces(tokens: Iterable[AddedToken]) -> tuple[list[AddedToken], dict[str, int]]:
    """Added tokens as they are found in a text, and new spellings by id for the vocabulary.

    Gemma's tokenizer.json spells runs of spaces in U+2581, its GGUF in spaces. It finds such a run in the
    text first; runs of spaces are found once they are spelled that way.
    """
    added = []
    respelled: dict[str, int] = {}
    for token in tokens:
        if token.special or " " not in token.content:
            added.append(token)
            continue
        spelled = token.content.replace(" ", SPACE)
        respelled[spelled] = token.id
        added += [AddedToken(token.id, spelled, normalized=later) for later in (False, True)]
    return added, respelled


def _spaced_bpe(metadata: Mapping[str, Any], pieces: Sequence[str], types: np.ndarray) -> Tokenizer:
    """Gemma 4 and others: merges, but spaces as U+2581 and bytes as "<0x0A>" as in SentencePiece."""
    vocab, ranks = _vocabulary(pieces, types, texts(metadata, "merges"))
    added, respelled = _runs_of_spaces(_added(metadata, pieces, types))
    if isinstance(vocab, PackedLookup):
        vocab.respell(respelled)
    else:
        vocab.update(respelled)
    unknown = np.flatnonzero(types == TokenType.UNKNOWN)
    return Tokenizer(
        len(pieces),
        added,
        BPE(
            vocab,
            ranks,
            " ",
            byte_ids=byte_ids(vocab),
            unknown_id=int(unknown[0]) if unknown.size else None,
            fuse_unknown=True,
        ),
        no_step,
        Detokenizer(pieces, byte_fallback=True, replacements=[(SPACE, " ")]),
        _settings(
            metadata,
            pieces,
            types,
            add_bos="gemma4" in (text(metadata, "model"), text(metadata, "pre", "")),
        ),
        replace(" ", SPACE),
        parts_at_metaspace(pieces) if isinstance(pieces, Strings) else None,
    )


def _added(metadata: Mapping[str, Any], pieces: Sequence[str], types: np.ndarray) -> list[AddedToken]:
    """Control, unknown (both special) and user-defined entries are matched in a text."""
    ids = np.flatnonzero(np.isin(types, (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)))
    check_added(len(ids))
    special = (types != TokenType.USER_DEFINED).tolist()
    tokens = bounded(AddedToken(i, pieces[i], special=special[i]) for i in ids.tolist())
    if any(flag_key(name) in metadata for name in FLAGS):
        having = {name: set(token_ids(metadata, flag_key(name), len(pieces), [])) for name in FLAGS}
        return [
            AddedToken(t.id, t.content, t.special, **{name: t.id in having[name] for name in FLAGS})
            for t in tokens
        ]
    name = metadata.get("general.name")
    if isinstance(name, str) and any(family in name.lower() for family in ("phi-3", "phi3")):
        # GGUF has no key for it, and llama.cpp knows the family by its name.
        return [with_fields(t, rstrip=t.content not in _PHI3_KEEPS_SPACE) for t in tokens]
    return tokens


def _settings(
    metadata: Mapping[str, Any], pieces: Sequence[str], types: np.ndarray, add_bos: bool
) -> TokenizerSettings:
    names = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id")
    notes: list[str] = []
    bos, eos, eot, eom = (token_id(metadata, name, len(pieces), notes) for name in names)
    ends = token_ids(metadata, f"{PREFIX}eos_token_ids", len(pieces), notes)  # Ollama's key
    control = {pieces[i]: i for i in np.flatnonzero(types == TokenType.CONTROL).tolist()}
    return TokenizerSettings(
        bos,
        eos,
        add_bos=bos is not None and flag(metadata, "add_bos_token", add_bos),
        add_eos=eos is not None and flag(metadata, "add_eos_token", False),
        end_ids=end_ids(control, eos, eot, eom, *ends),
        chat_templates=_chat_templates(metadata),
        prefix_ids=tuple(token_ids(metadata, PREFIX_IDS, len(pieces), notes)),
        notes=tuple(notes),
        fim_ids=_fim_ids(metadata, len(pieces), notes),
    )


def _fim_ids(metadata: Mapping[str, Any], n: int, notes: list[str]) -> tuple[int, int, int] | None:
    """The tokens for filling in the middle, by llama.cpp's keys of today or by its older ones."""
    for names in (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")):
        prefix, suffix, middle = (token_id(metadata, f"{name}_token_id", n, notes) for name in names)
        if prefix is not None and suffix is not None and middle is not None:
            return prefix, suffix, middle
    return None


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    templates: dict[str, str] = {}
    for name, template in metadata.items():
        if name == key or name.startswith(key + "."):
            if not isinstance(template, str):
                raise TokenizerError(f"{name} is {type(template).__name__} and should be a string")
            templates[name[len(key) + 1 :] or "default"] = template
    return templates
