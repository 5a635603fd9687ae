"""Tokenizers in Hugging Face's files: tokenizer.json, tokenizer.model, and the folder around them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..added import AddedToken
from ..bpe.bpe import BPE, merge_ranks, packed_ranks
from ..bpe.spm import SPACE, SentencePieceFile, TokenType, bpe_from_scores, byte_ids
from ..bpe.spm import PartsAtSpaces as PartsAtMarks
from ..bpe.spm import parts_at_spaces as piece_parts
from ..core import Tokenizer, TokenizerSettings
from ..detokenize import Detokenizer
from ..errors import TokenizerError
from ..normalize import chain
from ..normalize import prepend as put_before
from ..normalize import replace as replace_text
from ..pretokenize.pretokenize import PartsAtSpaces, Split, chain_steps, no_step, parts_at_spaces, spell_bytes
from ..strings import NO_ID, Lookup, PackedLookup, Replaced, Strings
from .components import decoder, kind, leaves_no_space, normalizers, steps, value
from .endings import end_ids
from .files import read_file
from .packed_json import PackedVocabulary, read_packed
from .spm_model import PlainModel
from .tekken import tekken_tokenizer

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
MAX_VOCAB = 1 << 22  # ids; the largest vocabularies have about 2^18


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json, tokenizer.model or tekken.json, or a folder with one of them.

    In a folder, tokenizer_config.json names begin and end tokens, and the chat template comes from there
    or from chat_template.jinja or .json. A tokenizer.model on its own behaves as in SentencePiece:
    control tokens are never found in a text. TokenizerError if a file is damaged or not supported.
    """
    path = Path(source)
    if path.is_dir():
        config = _read_object(path / "tokenizer_config.json")
        if (path / "tokenizer.json").is_file():
            return _from_json(path / "tokenizer.json", config, _chat_templates(path, config))
        if (path / "tokenizer.model").is_file():
            return _from_model(path / "tokenizer.model", config, _chat_templates(path, config))
        if (path / "tekken.json").is_file():
            return _from_json(path / "tekken.json", config, _chat_templates(path, config))
        raise TokenizerError(
            f"{path}: neither tokenizer.json nor tokenizer.model nor tekken.json in this folder"
        )
    if path.suffix == ".model":
        return _from_model(path, {}, {})
    return _from_json(path, {}, {})


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is no such file."""
    try:
        text = read_file(path).decode("utf-8-sig")
        content = json.loads(text)
        if _SURROGATE.search(text):  # escaped pairs are characters, but half of one is an error
            json.dumps(content, ensure_ascii=False).encode()
    except FileNotFoundError:
        return {}
    except TokenizerError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: not a JSON object")
    return content


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name: of tokenizer_config.json, chat_template.json, chat_template.jinja the last wins.

    Beside the last there may be others, named as their files in additional_chat_templates.
    """
    key = "chat_template"
    templates: dict[str, str] = {}
    for found in (config.get(key), _read_object(folder / "chat_template.json").get(key)):
        if isinstance(found, str):
            templates["default"] = found
        elif isinstance(found, list):
            for item in found:
                if not isinstance(item, dict):
                    raise TokenizerError(f"{folder}: {key} is neither a text nor a list of named texts")
                templates[value(item, "name", str)] = value(item, "template", str)
    files = [(path.stem, path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    for name, path in [*files, ("default", folder / "chat_template.jinja")]:
        try:
            templates[name] = read_file(path).decode("utf-8")
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path}: {error}") from None
    return templates


def _from_json(path: Path, config: Mapping[str, Any], templates: Mapping[str, str]) -> Tokenizer:
    packed = None
    if path.exists():
        try:
            packed = read_packed(read_file(path))
        except OSError as error:
            raise TokenizerError(f"{path}: {error}") from None
    content = packed.rest if packed else _read_object(path)
    if not content:
        raise TokenizerError(f"{path}: no such file" if not path.exists() else f"{path}: an empty object")
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
    if name != "BPE":
        raise TokenizerError(f"unsupported model {name!a}; BPE is supported")
    vocab: Lookup = PackedLookup(packed.pieces) if packed else Lookup(_valid(value(model, "vocab", dict)))
    added = [_added_token(item, vocab) for item in value(content, "added_tokens", list, [])]
    pieces = _pieces(packed.pieces if packed else vocab, added)
    cutting = steps(content.get("pre_tokenizer"))
    if leaves_no_space(content.get("normalizer")):  # Gemma cuts at spaces that are no longer there
        cutting = [step for step in cutting if not (isinstance(step, Split) and step.source == r"\ ")]
    byte_level = bool(cutting) and cutting[-1] is spell_bytes
    if byte_level:
        cutting.pop()  # the model spells only the words that it has not seen before
    parts: PartsAtSpaces | PartsAtMarks | None = parts_at_spaces(cutting)
    if not cutting and not byte_level:
        texts = packed.pieces if packed else Strings.pack([*vocab])
        parts = piece_parts(texts) if texts else None
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
        _settings(config, added, templates, content.get("post_processor")),
        normalizer,
        parts,
    )


def _valid(vocab: Mapping[str, int]) -> Mapping[str, int]:
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


def _added_token(item: object, vocab: Lookup) -> AddedToken:
    if not isinstance(item, dict):
        raise TokenizerError("added_tokens has an entry that is not an object")
    content = value(item, "content", str)
    id: object = vocab[content]
    if id == NO_ID:
        id = item.get("id")
    if type(id) is not int or not 0 <= id < MAX_VOCAB:
        raise TokenizerError(f"the added token {content[:80]!a} has no valid id")
    flags = {
        flag: value(item, flag, bool, False)
        for flag in ("special", "normalized", "lstrip", "rstrip", "single_word")
    }
    return AddedToken(id, content, **flags)


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
            raise TokenizerError(f"unsupported: {unsupported} {model[unsupported]!a}")
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


def _settings(
    config: Mapping[str, Any],
    added: Iterable[AddedToken],
    templates: Mapping[str, str],
    post_processor: object = None,
) -> TokenizerSettings:
    """tokenizer_config.json, and where it is silent the begin and end tokens that the post-processor adds."""
    tokens = list(added)
    ids = {token.content: token.id for token in tokens}
    first, last = _wrapping(post_processor)
    bos_id = ids.get(_content(config.get("bos_token")) or first or "")
    eos_id = ids.get(_content(config.get("eos_token")) or last or "")
    add_bos, add_eos = config.get("add_bos_token"), config.get("add_eos_token")
    return TokenizerSettings(
        bos_id,
        eos_id,
        add_bos=bos_id is not None and (add_bos if isinstance(add_bos, bool) else first is not None),
        add_eos=eos_id is not None and (add_eos if isinstance(add_eos, bool) else last is not None),
        end_ids=end_ids({t.content: t.id for t in tokens if t.special}, eos_id),
        chat_templates=templates,
    )


def _content(token: object) -> str | None:
    """The spelling in a token of tokenizer_config.json, which is a text or an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _wrapping(post_processor: object) -> tuple[str | None, str | None]:
    """The special tokens that a TemplateProcessing puts in front of a text and after it."""
    if not isinstance(post_processor, dict):
        return None, None
    if post_processor.get("type") == "Sequence":
        for item in value(post_processor, "processors", list, []):
            if any(found := _wrapping(item)):
                return found
    single = post_processor.get("single")
    if post_processor.get("type") != "TemplateProcessing" or not isinstance(single, list) or not single:
        return None, None
    return _special_token(single[0]), _special_token(single[-1])


def _special_token(part: object) -> str | None:
    """The token of {"SpecialToken": {"id": …}}."""
    token = part.get("SpecialToken") if isinstance(part, dict) else None
    return _content({"content": token.get("id")}) if isinstance(token, dict) else None


def _from_model(path: Path, config: Mapping[str, Any], templates: Mapping[str, str]) -> Tokenizer:
    """A tokenizer.model. With a tokenizer_config.json beside it, its control tokens count in a text."""
    file = SentencePieceFile(path)
    pieces: list[str | None] = [*file.pieces]
    added: dict[int, AddedToken] = {}
    if config:
        added = {id: AddedToken(id, file.pieces[id], special=True) for id in file.control_ids}
        for text, item in value(config, "added_tokens_decoder", dict, {}).items():
            if not text.isdecimal() or not isinstance(item, dict):
                raise TokenizerError(f"{path}: added_tokens_decoder has a bad entry {text[:80]!a}")
            token = _added_token({**item, "id": int(text[:9])}, Lookup())
            added[token.id] = token
        pieces += [None] * (max(added, default=0) + 1 - len(pieces))
        for token in added.values():
            pieces[token.id] = token.content
    settings = _settings(config, added.values(), templates)
    if not config:
        settings = TokenizerSettings(
            file.bos_id,
            file.eos_id,
            add_bos=file.bos_id is not None,
            end_ids=frozenset() if file.eos_id is None else frozenset({file.eos_id}),
        )
    detokenizer = Detokenizer(
        pieces, byte_fallback=True, replacements=[(SPACE, " ")], strip_space=file.has_dummy_prefix
    )
    plain = file.plain
    packed = Strings.pack(plain.pieces) if plain else None
    if plain is None or packed is None:
        return Tokenizer(len(pieces), added.values(), file, no_step, detokenizer, settings)
    spelled = [put_before(SPACE)] if plain.prefix else []
    return Tokenizer(
        len(pieces),
        [*(replace(token, normalized=False) for token in added.values()), *_user_defined(plain, added)],
        bpe_from_scores(packed, plain.scores, plain.types, {}),
        no_step,
        detokenizer,
        settings,
        chain([*spelled, replace_text(" ", SPACE)]),
        piece_parts(packed),
    )


def _user_defined(plain: PlainModel, others: Iterable[int]) -> list[AddedToken]:
    """Entries, but for `others`, that are found in a text before anything is merged."""
    ids = set(np.flatnonzero(plain.types == TokenType.USER_DEFINED).tolist()).difference(others)
    return [AddedToken(id, plain.pieces[id], normalized=True) for id in sorted(ids)]
