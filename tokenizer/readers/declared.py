"""What the small files beside a vocabulary say about its tokens.

A folder may have any of tokenizer_config.json (with `added_tokens_decoder`, or without in older ones),
special_tokens_map.json and added_tokens.json, and each may name tokens that the vocabulary's own file does
not say to be special, or does not have at all. Source: `from_pretrained` of transformers' tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..added import AddedToken
from ..errors import TokenizerError
from ..strings import Lookup
from .components import value
from .files import CONFIG_LIMITS, read_object
from .settings import added_token, bounded, check_added, content_of

_DECODER = "added_tokens_decoder"
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, completed by special_tokens_map.json and added_tokens.json; empty without any.

    As in transformers, special_tokens_map.json goes first where tokenizer_config.json is an old one, without
    `added_tokens_decoder`. The tokens of added_tokens.json join this key.
    """
    config = read_object(folder / "tokenizer_config.json", CONFIG_LIMITS, folder)
    named = read_object(folder / "special_tokens_map.json", CONFIG_LIMITS, folder)
    config = {**named, **config} if _DECODER in config else {**config, **named}
    if added := read_object(folder / "added_tokens.json", CONFIG_LIMITS, folder):
        check_added(len(added))
        decoder = dict(value(config, _DECODER, dict, {}))
        known = {content_of(item) for item in decoder.values()}
        special = {content for content, _ in _special_tokens(config)}
        for content, id in added.items():
            if type(id) is not int:
                raise TokenizerError(f"{folder / 'added_tokens.json'}: {content[:80]!a} has no valid id")
            if content not in known:
                flags = {"special": content in special, "normalized": content not in special}
                decoder.setdefault(str(id), {"content": content, **flags})
        config[_DECODER] = decoder
    return config


def with_declared(
    added: Iterable[AddedToken], config: Mapping[str, Any], id_of: Callable[[str], int | None]
) -> list[AddedToken]:
    """The added tokens of a vocabulary's file, and those that `config` (of `read_settings`) declares.

    `id_of` gives the vocabulary's id of a text. A token that is there already keeps its flags, but is special
    if `config` names it as begin, end and the like. Raises TokenizerError.
    """
    tokens = {token.content: token for token in added}
    declared = value(config, _DECODER, dict, {})
    check_added(len(declared))
    for text, item in declared.items():
        if not text.isdecimal() or not isinstance(item, dict):
            raise TokenizerError(f"{_DECODER} has a bad entry {text[:80]!a}")
        token = added_token({**item, "id": int(text[:9])}, Lookup())
        tokens.setdefault(token.content, token)
    for content, flags in _special_tokens(config):
        if content in tokens:
            if not tokens[content].special:
                tokens[content] = replace(tokens[content], special=True)
        elif (id := id_of(content)) is not None:
            tokens[content] = added_token({**flags, "content": content, "id": id, "special": True}, Lookup())
    return bounded(tokens.values())


def _special_tokens(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The spellings of the special tokens that `config` names, and their flags. TokenizerError: too many."""
    items = [config.get(name) for name in _NAMES]
    for name in _LISTS:
        found = config.get(name)
        items += found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    check_added(len(items))
    for item in items:
        if content := content_of(item):
            yield content, item if isinstance(item, dict) else {}
