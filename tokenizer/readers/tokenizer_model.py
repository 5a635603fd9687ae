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
from ..normalize import chain, prepend
from ..normalize import replace as replace_text
from ..pretokenize.metaspace import SPACE, parts_at_metaspace
from ..pretokenize.pretokenize import no_step
from ..strings import Strings
from .declared import with_declared
from .sentencepiece_file import SentencePieceFile
from .settings import bounded, settings_of
from .spm_model import PlainModel


def tokenizer_from_model(
    path: Path, config: Mapping[str, Any], templates: Mapping[str, str], within: Path | None = None
) -> Tokenizer:
    """A tokenizer.model; `within` as for `files.read_file`.

    With a tokenizer_config.json beside it, its control tokens count in a text.
    """
    file = SentencePieceFile(path, within)
    pieces: list[str | None] = [*file.pieces]
    added = {token.id: token for token in added_tokens(file, config)}
    pieces += [None] * (max(added, default=0) + 1 - len(pieces))
    for token in added.values():
        pieces[token.id] = token.content
    special = [*added.values()]
    settings = settings_of(config, special, templates, default_ids=(file.bos_id, file.eos_id))
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


def added_tokens(file: SentencePieceFile, config: Mapping[str, Any]) -> list[AddedToken]:
    """The added tokens that the files beside a tokenizer.model declare (`config`, of `read_settings`), and
    the model's control tokens; none if there are no such files."""
    if not config:
        return []
    ids = {piece: id for id, piece in enumerate(file.pieces)}
    declared = with_declared((), config, ids.get)
    known = {token.id for token in declared}
    control = (AddedToken(id, file.pieces[id], special=True) for id in file.control_ids if id not in known)
    return bounded(chain_of(control, declared))


def _user_defined(plain: PlainModel, others: Iterable[int]) -> Iterator[AddedToken]:
    """Entries, but for `others`, that are found in a text before anything is merged."""
    ids = set(np.flatnonzero(plain.types == TokenType.USER_DEFINED).tolist()).difference(others)
    return (AddedToken(id, plain.pieces[id], normalized=True) for id in sorted(ids))
