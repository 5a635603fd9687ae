"""What a tokenizer_config.json and the added tokens of a file say beside the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from ..added import AddedToken
from ..core import TokenizerSettings
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
