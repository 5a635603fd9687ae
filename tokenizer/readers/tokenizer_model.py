"""A SentencePiece tokenizer.model as a Tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain as chain_of
from pathlib import Path
from typing import Any

import numpy as np

from ..added import AddedToken
from ..bpe.scored import TokenType, bpe_from_scores
from ..core import Tokenizer, TokenizerSettings
from ..detokenize import Detokenizer
from ..errors import TokenizerError
from ..normalize import chain, prepend
from ..normalize import replace as replace_text
from ..pretokenize.metaspace import SPACE, parts_at_metaspace
from ..pretokenize.pretokenize import no_step
from ..strings import Lookup, Strings
from .components import value
from .sentencepiece_file import SentencePieceFile
from .settings import added_token, bounded, check_added, settings_of
from .spm_model import PlainModel


def tokenizer_from_model(
    path: Path, config: Mapping[str, Any], templates: Mapping[str, str], within: Path | None = None
) -> Tokenizer:
    """A tokenizer.model; `within` as for `files.read_file`.

    With a tokenizer_config.json beside it, its control tokens count in a text.
    """
    file = SentencePieceFile(path, within)
    pieces: list[str | None] = [*file.pieces]
    added: dict[int, AddedToken] = {}
    if config:
        more = value(config, "added_tokens_decoder", dict, {})
        check_added(len(file.control_ids) + len(more))
        added = {id: AddedToken(id, file.pieces[id], special=True) for id in file.control_ids}
        for text, item in more.items():
            if not text.isdecimal() or not isinstance(item, dict):
                raise TokenizerError(f"{path}: added_tokens_decoder has a bad entry {text[:80]!a}")
            token = added_token({**item, "id": int(text[:9])}, Lookup())
            added[token.id] = token
        pieces += [None] * (max(added, default=0) + 1 - len(pieces))
        for token in added.values():
            pieces[token.id] = token.content
    special = bounded(added.values())
    settings = settings_of(config, special, templates)
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
        return Tokenizer(len(pieces), special, file, no_step, detokenizer, settings)
    spelled = [prepend(SPACE)] if plain.prefix else []
    controls = (replace(token, normalized=False) for token in special)
    return Tokenizer(
        len(pieces),
        bounded(chain_of(controls, _user_defined(plain, added))),
        bpe_from_scores(packed, plain.scores, plain.types, {}),
        no_step,
        detokenizer,
        settings,
        chain([*spelled, replace_text(" ", SPACE)]),
        parts_at_metaspace(packed),
    )


def _user_defined(plain: PlainModel, others: Iterable[int]) -> Iterator[AddedToken]:
    """Entries, but for `others`, that are found in a text before anything is merged."""
    ids = set(np.flatnonzero(plain.types == TokenType.USER_DEFINED).tolist()).difference(others)
    return (AddedToken(id, plain.pieces[id], normalized=True) for id in sorted(ids))
