"""The components of a tokenizer.json: normalizer, pre_tokenizer and decoder, as `tokenizers` writes them."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from typing import Any

from ..errors import TokenizerError
from ..normalize import Normalizer, lowercase, prepend, replace, strip, substitute, unicode_form
from ..pieces.bert import bert_normalizers, cut_words, strip_accents
from ..pieces.charsmap import charsmap
from ..pretokenize.patterns import DIGIT, GPT2, PUNCTUATION, known
from ..pretokenize.pretokenize import Split, Step, compile_pattern, metaspace, prefix_space, spell_bytes

Spec = Mapping[str, Any]

MAX_COMPONENTS = 1 << 10  # files have up to 20, and a few special tokens in their post-processor
MAX_PATTERNS = 1 << 13  # characters of all patterns together; files have up to 1500
MAX_GROWTH = 4  # of a token's text by the decoder; it grows in no known one
PATTERN_SECONDS = 60.0  # one text through one pattern that only this file has


def kind(spec: object, part: str) -> tuple[str, Spec]:
    """The type of a component and the component, checked to be an object that names one."""
    if not isinstance(spec, dict) or not isinstance(spec.get("type"), str):
        raise TokenizerError(f"tokenizer.json: the {part} is not an object with a type")
    return spec["type"], spec


def value(spec: Spec, key: str, expected: type, default: Any = None) -> Any:
    """`spec[key]`, or the default; TokenizerError if that is not of the type expected."""
    found = spec.get(key, default)
    if not isinstance(found, expected):
        raise TokenizerError(
            f"tokenizer.json: {key} is {type(found).__name__} and should be {expected.__name__}"
        )
    return found


def check_components(content: Spec) -> None:
    """TokenizerError if a tokenizer.json has more components, or longer patterns, than are read."""
    pending = [content.get(part) for part in ("normalizer", "pre_tokenizer", "decoder", "post_processor")]
    n_components = n_characters = 0
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            n_components += len(item)
            pending += item
        elif isinstance(item, dict):
            n_components += "type" in item
            patterns = [item.get("Regex"), item.get("String")]
            n_characters += sum(len(text) for text in patterns if isinstance(text, str))
            pending += [inner for inner in item.values() if isinstance(inner, list | dict)]
        if n_components > MAX_COMPONENTS:
            raise TokenizerError(f"tokenizer.json: over {MAX_COMPONENTS} components")
    if n_characters > MAX_PATTERNS:
        raise TokenizerError(f"tokenizer.json: patterns of {n_characters} characters, over {MAX_PATTERNS}")


def _items(spec: Spec, key: str) -> list[Any]:
    items: list[Any] = value(spec, key, list)
    return items


def _pattern(spec: Spec) -> str:
    """The source of {"String": …} or {"Regex": …}."""
    pattern = value(spec, "pattern", dict)
    if isinstance(pattern.get("Regex"), str):
        return str(pattern["Regex"])
    return re.escape(value(pattern, "String", str))


def normalizers(spec: object) -> list[Normalizer]:
    """The normaliser as functions to apply in order."""
    if spec is None:
        return []
    name, fields = kind(spec, "normalizer")
    match name:
        case "Sequence":
            return [n for item in _items(fields, "normalizers") for n in normalizers(item)]
        case "NFC" | "NFD" | "NFKC" | "NFKD":
            return [unicode_form(name)]
        case "Prepend":
            return [prepend(value(fields, "prepend", str))]
        case "Replace":
            pattern, content = value(fields, "pattern", dict), value(fields, "content", str)
            if isinstance(pattern.get("String"), str) and pattern["String"]:
                return [replace(pattern["String"], content)]
            return [substitute(compile_pattern(_pattern(fields)), content, PATTERN_SECONDS)]
        case "Strip":
            return [strip(value(fields, "strip_left", bool, True), value(fields, "strip_right", bool, True))]
        case "Lowercase":
            return [lowercase]
        case "StripAccents":
            return [strip_accents]
        case "BertNormalizer":
            lower = value(fields, "lowercase", bool, True)
            strip_too = fields.get("strip_accents")
            clean, spaced = (value(fields, key, bool, True) for key in ("clean_text", "handle_chinese_chars"))
            return bert_normalizers(clean, spaced, lower if strip_too is None else bool(strip_too), lower)
        case "Precompiled":
            try:
                return [charsmap(base64.b64decode(value(fields, "precompiled_charsmap", str), validate=True))]
            except ValueError:
                raise TokenizerError("a table of replacements is not Base64") from None
    raise TokenizerError(f"unsupported normalizer {name[:80]!a}")


def leaves_no_space(spec: object) -> bool:
    """Whether a normaliser replaces every space, and puts none in again."""
    parts = _items(spec, "normalizers") if isinstance(spec, dict) and "normalizers" in spec else [spec]
    gone = False
    for part in parts:
        if not isinstance(part, dict) or part.get("type") not in ("Replace", "Prepend"):
            gone = False
            continue
        made = part.get("content", part.get("prepend"))
        if part.get("pattern") == {"String": " "}:
            gone = True
        gone = gone and isinstance(made, str) and " " not in made
    return gone


def steps(spec: object) -> list[Step]:
    """The pre-tokeniser as steps; `spell_bytes` among them where byte-level symbols begin."""
    if spec is None:
        return []
    name, fields = kind(spec, "pre_tokenizer")
    match name:
        case "Sequence":
            return [s for item in _items(fields, "pretokenizers") for s in steps(item)]
        case "Split":
            behavior, invert = value(fields, "behavior", str), value(fields, "invert", bool, False)
            pattern = _pattern(fields)
            return [Split(pattern, behavior, invert, None if known(pattern) else PATTERN_SECONDS)]
        case "ByteLevel":
            prefix = [prefix_space] if value(fields, "add_prefix_space", bool, True) else []
            words = [Split(GPT2)] if value(fields, "use_regex", bool, True) else []
            return [*prefix, *words, spell_bytes]
        case "Digits":
            behavior = "Isolated" if value(fields, "individual_digits", bool, False) else "Contiguous"
            return [Split(DIGIT, behavior)]
        case "Punctuation":
            return [Split(PUNCTUATION, value(fields, "behavior", str, "Isolated"))]
        case "Whitespace":
            return [Split(r"\w+|[^\w\s]+", "Removed", invert=True)]
        case "BertPreTokenizer":
            return [cut_words]
        case "WhitespaceSplit":
            return [Split(r"\s+", "Removed")]
        case "Metaspace":
            scheme = value(fields, "prepend_scheme", str, "always")
            if not value(fields, "add_prefix_space", bool, True):
                scheme = "never"
            return [metaspace(value(fields, "replacement", str), scheme, value(fields, "split", bool, True))]
    raise TokenizerError(f"unsupported pre_tokenizer {name[:80]!a}")


def decoder(spec: object) -> dict[str, Any]:
    """The decoder as keyword arguments of `Detokenizer`.

    That covers ByteLevel, Metaspace, and the chain of SentencePiece's: Replace, ByteFallback, Fuse, Strip.
    """
    arguments: dict[str, Any] = {}
    for name, fields in _flat(spec):
        match name:
            case "ByteLevel":
                arguments["byte_level"] = True
            case "ByteFallback":
                arguments["byte_fallback"] = True
            case "Fuse":
                pass
            case "Replace":
                old = value(value(fields, "pattern", dict), "String", str)
                arguments.setdefault("replacements", []).append((old, value(fields, "content", str)))
            case "Strip" if [fields.get(key) for key in ("content", "start", "stop")] == [" ", 1, 0]:
                arguments["strip_space"] = True
            case "WordPiece":
                arguments["word_piece"] = value(fields, "prefix", str, "##")
            case "Metaspace":
                arguments.setdefault("replacements", []).append((value(fields, "replacement", str), " "))
                prefixed = fields.get("add_prefix_space", True) and fields.get("prepend_scheme") != "never"
                arguments["strip_space"] = bool(prefixed)
            case _:
                raise TokenizerError(f"unsupported decoder {name[:80]!a}")
    replacements = arguments.get("replacements", ())
    growth = math.prod(max(1, len(new)) for _, new in replacements)
    if growth > MAX_GROWTH or not all(old for old, _ in replacements):  # the empty text is everywhere
        raise TokenizerError(f"the decoder makes a text over {MAX_GROWTH} times as long")
    return arguments


def _flat(spec: object) -> list[tuple[str, Spec]]:
    if spec is None:
        return []
    name, fields = kind(spec, "decoder")
    if name == "Sequence":
        return [part for item in _items(fields, "decoders") for part in _flat(item)]
    return [(name, fields)]
