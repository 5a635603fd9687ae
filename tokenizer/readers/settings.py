"""What a tokenizer_config.json and the added tokens of a file say beside the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from ..added import AddedToken
from ..core import PairTemplate, TokenizerSettings
from ..errors import TokenizerError
from ..strings import NO_ID, Lookup
from .components import value
from .endings import end_ids

MAX_VOCAB = 1 << 20  # ids; the largest vocabularies have about 2^18
LONGEST_PIECE = 1 << 16  # characters or bytes of an entry; they have up to 2^9
MAX_MERGES = 1 << 21  # the largest have 2^19
MAX_ADDED = 1 << 17  # added tokens; models of speech have 2^16
LONGEST_ADDED = 1 << 10  # characters of one
MAX_ADDED_CHARACTERS = 1 << 22  # of all together


def added_token(item: object, vocab: Lookup) -> AddedToken:
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


def bounded(tokens: Iterable[AddedToken]) -> list[AddedToken]:
    """The added tokens of a file; TokenizerError if they are too many or too long."""
    found = list(islice(tokens, MAX_ADDED + 1))
    check_added(len(found))
    sizes = [len(token.content) for token in found]
    if max(sizes, default=0) > LONGEST_ADDED or sum(sizes) > MAX_ADDED_CHARACTERS:
        raise TokenizerError(
            f"an added token has {max(sizes)} characters, all together {sum(sizes)}; at most {LONGEST_ADDED} "
            f"and {MAX_ADDED_CHARACTERS} are read"
        )
    return found


def check_added(n: int) -> None:
    """TokenizerError for so many added tokens that they are not read."""
    if n > MAX_ADDED:
        raise TokenizerError(f"there are over {MAX_ADDED} added tokens")


def settings_of(
    config: Mapping[str, Any],
    added: Iterable[AddedToken],
    templates: Mapping[str, str],
    post_processor: object = None,
    default_ids: tuple[int | None, int | None] = (None, None),
    n_tokens: int = MAX_VOCAB,
) -> TokenizerSettings:
    """tokenizer_config.json, and where it is silent the begin and end tokens that the post-processor adds.

    `default_ids`: the begin and end tokens of a vocabulary that names them itself, of `n_tokens` tokens.
    """
    tokens = list(added)
    ids = {token.content: token.id for token in tokens}
    before, after = _around(post_processor, ids, n_tokens)
    bos_id = _named(config, "bos_token", ids, before[0] if len(before) == 1 else default_ids[0])
    eos_id = _named(config, "eos_token", ids, after[0] if len(after) == 1 else default_ids[1])
    add_bos, add_eos = config.get("add_bos_token"), config.get("add_eos_token")
    adds_bos = bos_id is not None and (add_bos if isinstance(add_bos, bool) else bos_id in before)
    prefix = [id for id in before if id != bos_id or adds_bos]
    if adds_bos and bos_id is not None and bos_id not in prefix:
        prefix.insert(0, bos_id)
    adds_eos = eos_id is not None and (add_eos if isinstance(add_eos, bool) else eos_id in after)
    suffix = [id for id in after if id != eos_id or adds_eos]
    if adds_eos and eos_id is not None and eos_id not in suffix:
        suffix.append(eos_id)
    return TokenizerSettings(
        bos_id,
        eos_id,
        add_bos=adds_bos,
        add_eos=adds_eos,
        end_ids=end_ids({t.content: t.id for t in tokens if t.special}, eos_id),
        chat_templates=templates,
        prefix_ids=tuple(prefix),
        suffix_ids=tuple(suffix),
        pair=pair_template(post_processor, ids, n_tokens),
    )


def _named(config: Mapping[str, Any], key: str, ids: Mapping[str, int], default: int | None) -> int | None:
    """The id of the token that `config` names, if that is a token; `default` if it names none."""
    content = content_of(config.get(key))
    return default if content is None else ids.get(content)


def content_of(token: object) -> str | None:
    """The spelling in a token of tokenizer_config.json, which is a text or an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _around(post_processor: object, ids: Mapping[str, int], n_tokens: int) -> tuple[list[int], list[int]]:
    """The special tokens that a TemplateProcessing puts in front of a text and after it.

    `ids` are those of tokens whose ids it does not say, or wrongly (not below `n_tokens`).
    """
    if not isinstance(post_processor, dict):
        return [], []
    if post_processor.get("type") == "Sequence":
        for item in value(post_processor, "processors", list, []):
            if any(found := _around(item, ids, n_tokens)):
                return found
    if str(post_processor.get("type")) in _OLDER:
        cls, sep = (_older_id(post_processor, key) for key in ("cls", "sep"))
        return ([cls], [sep]) if cls is not None and sep is not None else ([], [])
    single = post_processor.get("single")
    if post_processor.get("type") != "TemplateProcessing" or not isinstance(single, list):
        return [], []
    stated = post_processor.get("special_tokens")
    around: tuple[list[int], list[int]] = ([], [])
    behind = False
    for part in single:
        behind = behind or (isinstance(part, dict) and "Sequence" in part)
        token = part.get("SpecialToken") if isinstance(part, dict) else None
        if isinstance(token, dict) and isinstance(token.get("id"), str):
            around[behind].extend(_ids_of(token["id"], stated, ids, n_tokens))
    return around


_OLDER = {"BertProcessing": 1, "RobertaProcessing": 2}  # post-processors → separators between two texts


def _older_id(post_processor: Mapping[str, Any], key: str) -> int | None:
    """The id in ["[SEP]", 102]; None if it is something else."""
    entry = post_processor.get(key)
    id = entry[1] if isinstance(entry, list) and len(entry) == 2 else None
    return id if type(id) is int and 0 <= id < MAX_VOCAB else None


def pair_template(post_processor: object, ids: Mapping[str, int], n_tokens: int) -> PairTemplate:
    """How a post-processor reads two texts together; empty if it does not say. `ids` as for `_around`."""
    if not isinstance(post_processor, dict):
        return ()
    if post_processor.get("type") == "Sequence":
        found = (pair_template(p, ids, n_tokens) for p in value(post_processor, "processors", list, []))
        return next(filter(None, found), ())
    if between := _OLDER.get(str(post_processor.get("type"))):
        before, after = _around(post_processor, ids, n_tokens)
        second = int(between == 1)  # the type of BERT's second text
        first, last = tuple(before), tuple(after)
        return ((first, 0), ("A", 0), (last * between, 0), ("B", second), (last, second)) if first else ()
    pair = post_processor.get("pair")
    if post_processor.get("type") != "TemplateProcessing" or not isinstance(pair, list):
        return ()
    stated, parts = post_processor.get("special_tokens"), list[tuple[tuple[int, ...] | str, int]]()
    for part in pair:
        kind, entry = next(iter(part.items())) if isinstance(part, dict) and len(part) == 1 else ("", {})
        name = entry.get("id") if isinstance(entry, dict) else None
        type_ = entry.get("type_id", 0) if isinstance(entry, dict) else None
        if not isinstance(name, str) or type_ not in (0, 1):
            return ()
        parts.append((name if kind == "Sequence" else tuple(_ids_of(name, stated, ids, n_tokens)), type_))
    return tuple(parts) if {"A", "B"} <= {part for part, _ in parts} else ()


def _ids_of(name: str, stated: object, ids: Mapping[str, int], n_tokens: int) -> list[int]:
    """The ids of a special token of a TemplateProcessing, whose `special_tokens` are `stated`."""
    entry = stated.get(name) if isinstance(stated, dict) else None
    listed = entry.get("ids") if isinstance(entry, dict) else None
    if isinstance(listed, list) and all(type(id) is int and 0 <= id < n_tokens for id in listed):
        return listed
    return [ids[name]] if name in ids else []
