"""The tokenizer: text to ids and back, whatever file it came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, filterfalse
from typing import TYPE_CHECKING, Protocol

from .added import AddedToken, AddedTokens
from .bpe.bpe import BPE
from .detokenize import Detokenizer
from .guard import SpecialGuard
from .normalize import Normalizer
from .pretokenize.metaspace import PartsAtMetaspace
from .pretokenize.pretokenize import PartsAtSpaces, Step, cut_parts

if TYPE_CHECKING:
    from .bpe.compiled.encoder import CompiledEncoder

# Some vocabularies do not declare their turn markers special: <｜User｜> of DeepSeek, for one.
_MARKER = re.compile(r"<[|\uff5c].+[|\uff5c]>")


EncodeKernel = Callable[[int, int, int], None]  # see bpe/compiled/encoder.py

_NOT_SPOKEN = "\x02"  # a character that is part of no longer token
_BEGINNINGS = {_NOT_SPOKEN.encode(), f" {_NOT_SPOKEN}".encode()}
_KNOWN_LENGTH = 64  # characters; longer parts are not kept
_KNOWN_PARTS = 200_000
_LEAST_TOGETHER = 200  # parts; for fewer one after the other is faster
_COMPILED_PAYS = 1_500  # characters after which machine code is asked for


class WordModel(Protocol):
    """The model that turns words into ids: byte-pair encoding or a unigram model."""

    def encode(self, words: Iterable[str]) -> Iterable[int]: ...

    def learn(self, words: Iterable[str]) -> None:
        """A hint that words will be asked for."""


# How two texts are read together: (ids of special tokens or the text "A" or "B", their token type) in order
PairTemplate = tuple[tuple[tuple[int, ...] | str, int], ...]


@dataclass(frozen=True)
class TokenizerSettings:
    """What a file says beside the vocabulary."""

    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    end_ids: frozenset[int] = frozenset()
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    prefix_ids: tuple[int, ...] = ()  # if there are others in front of a text than the begin token
    suffix_ids: tuple[int, ...] = ()  # if there are others behind a text than the end token
    pair: PairTemplate = ()
    notes: tuple[str, ...] = ()
    fim_ids: tuple[int, int, int] | None = None  # in front of prefix, suffix and middle


class Tokenizer:
    """Text ↔ token ids. Made by `load_tokenizer` and `tokenizer_from_gguf`.

    bos_id, eos_id   begin and end of a text, None where the file names none
    add_bos, add_eos whether a model expects them around a prompt; encode() never adds them
    end_ids          tokens that end an answer (end of text, of turn, of message)
    prefix_ids       what a model expects in front of a prompt: mostly the begin token, if add_bos is set
    suffix_ids       what it expects behind a text that is whole: mostly the end token, if add_eos is set
    chat_templates   Jinja sources by name
    special_tokens   control tokens by their spelling
    added_tokens     all tokens that are looked for in a text, as they are spelled there
    notes            lines for the user about what in the files contradicts the vocabulary
    fim_ids          tokens in front of prefix, suffix and middle (fim.py), if the files name them
    """

    def __init__(
        self,
        vocab_size: int,
        added: Iterable[AddedToken],
        model: WordModel,
        cut: Step,
        detokenizer: Detokenizer,
        settings: TokenizerSettings,
        normalize: Normalizer | None = None,
        parts: PartsAtSpaces | PartsAtMetaspace | None = None,
    ) -> None:
        """`cut` pre-tokenizes; `parts` quickly cuts a text into chunks where `cut` always cuts it too."""
        tokens = list(added)
        self.vocab_size = vocab_size
        self.added_tokens = tuple(tokens)
        self.special_tokens: dict[str, int] = {t.content: t.id for t in tokens if t.special}
        self.bos_id = settings.bos_id
        self.eos_id = settings.eos_id
        self.add_bos = settings.add_bos
        self.add_eos = settings.add_eos
        self.end_ids = settings.end_ids
        self.chat_templates = settings.chat_templates
        begin = (self.bos_id,) if self.add_bos and self.bos_id is not None else ()
        self.prefix_ids: tuple[int, ...] = settings.prefix_ids or begin
        end = (self.eos_id,) if self.add_eos and self.eos_id is not None else ()
        self.suffix_ids: tuple[int, ...] = settings.suffix_ids or end
        before, behind = self.prefix_ids, self.suffix_ids
        own = settings.pair or ((before, 0), ("A", 0), (behind, 0), ("B", 1), (behind, 1))
        self._pair: PairTemplate = own
        self.notes = settings.notes
        self.fim_ids = settings.fim_ids
        self._special_ids = frozenset(self.special_tokens.values())
        self._markers = [t.content for t in tokens if t.special or _MARKER.fullmatch(t.content)]
        self._added = AddedTokens(t for t in tokens if not t.normalized)
        self._added_normalized = AddedTokens(t for t in tokens if t.normalized)
        self._model = model
        self._cut = cut
        self._detokenizer = detokenizer
        self._normalize = normalize
        self._parts = parts
        self._known = _Known(self)
        self._kernels: Callable[[int], EncodeKernel | None] | None = None
        self._n_encoded = 0  # characters
        self._least_together = _LEAST_TOGETHER
        self._compiled: CompiledEncoder | None = None

    def __repr__(self) -> str:
        ends = ", ".join(map(repr, map(self.token_text, sorted(self.end_ids)))) or "no end token"
        template = "a chat template" if self.chat_template else "no chat template"
        return f"<Tokenizer: {self.vocab_size} tokens, ends at {ends}, {template}>"

    def accelerate(self, kernels: Callable[[int], EncodeKernel | None]) -> None:
        """Let long texts be encoded by machine code: `kernels` returns the kernel of bpe/compiled/.

        It is called with the number of characters encoded so far, and again as long as it returns None.
        """
        if self._parts is not None and isinstance(self._model, BPE):
            self._kernels = kernels

    @cached_property
    def guard(self) -> SpecialGuard:
        """What keeps control tokens typed by a user apart from those of a chat template."""
        return SpecialGuard(self._markers)

    @property
    def chat_template(self) -> str | None:
        """The default chat template, None for a model that has none."""
        return self.chat_templates.get("default")

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The ids of `text`, without begin and end tokens.

        With `special`, control tokens written in the text count; without it they are ordinary text.
        Other added tokens (USER_DEFINED in a GGUF) always count. Lone surrogates become U+FFFD.
        """
        return self._encode(text, special, None)

    def merge_steps(self, text: str, longest: int | None = None) -> list[list[list[str]]]:
        """How byte-pair encoding makes tokens of a text: for each word that it is cut into, the pieces in
        front of the first merge and behind each one, as texts. Empty for another kind of vocabulary.

        A word of n characters has up to n steps of as many pieces: those of more than `longest` are left out
        (some vocabularies take a whole text as one word).
        """
        if not isinstance(self._model, BPE):
            return []
        model, words = self._model, []
        for i, part in enumerate(self._split(_without_surrogates(text), False)):
            if not isinstance(part, int):
                cut = self._cut(part, i == 0)
                words += [model.merge_steps(word) for word in cut if longest is None or len(word) <= longest]
        return words

    def encode_within(self, text: str) -> list[int]:
        """The ids of `text` as a part of another one: without the space that an encoder puts in front of a
        whole text."""
        if not self._detokenizer.strips_space:
            return self.encode(text)
        ids = self.encode(_NOT_SPOKEN + text)
        begun = b""
        for n, id_ in enumerate(ids):
            if begun in _BEGINNINGS:
                return ids[n:]
            begun += self.token_bytes(id_)
        return [] if begun in _BEGINNINGS else self.encode(text)

    def with_prefix(self, ids: list[int]) -> list[int]:
        """The ids of a prompt, begun as the model expects it, unless they begin that way already."""
        return ids if ids[:1] == [*self.prefix_ids[:1]] else [*self.prefix_ids, *ids]

    def pair(self, a: list[int], b: list[int]) -> tuple[list[int], list[int]]:
        """The ids of two texts that are read together, and the type of each token."""
        ids, types = list[int](), list[int]()
        for part, type_ in self._pair:
            more = (a if part == "A" else b) if isinstance(part, str) else part
            ids += more
            types += [type_] * len(more)
        return ids, types

    def encode_rendered(self, text: str, restore: Callable[[str], str]) -> list[int]:
        """The ids of a prompt in which added tokens count, except those that `restore` brings out.

        Added tokens are found first; then `restore` changes what is left between them back to what it
        means, and that is encoded as text. With an identity this equals encode(text, special=True).
        """
        return self._encode(text, True, restore)

    def _encode(self, text: str, special: bool, restore: Callable[[str], str] | None) -> list[int]:
        ids: list[int] = []
        segments: list[str | int] = list(self._split(_without_surrogates(text), special))
        if restore is not None:
            segments = [part if isinstance(part, int) else restore(part) for part in segments]
        if self._parts is None:
            for i, part in enumerate(segments):
                ids.extend((part,) if isinstance(part, int) else self.encode_part(part, i == 0))
            return ids
        compiled = self._compiled_encoder(len(text))
        if compiled is not None:
            return compiled.encode(segments, self._encode_left)
        cut = [part if isinstance(part, int) else self._parts(part) for part in segments]
        if len(text) >= self._least_together:
            self._learn(chain.from_iterable(parts for parts in cut if not isinstance(parts, int)))
        known = self._known.__getitem__
        for parts in cut:
            if isinstance(parts, int):
                ids.append(parts)
            else:
                ids.extend(chain.from_iterable(map(known, parts)))
        return ids

    def _compiled_encoder(self, n_more: int) -> CompiledEncoder | None:
        """The compiled encoder, before `n_more` characters are encoded; None while there is none."""
        if self._kernels is None or self._compiled is not None:
            return self._compiled
        self._n_encoded += n_more
        if self._n_encoded < _COMPILED_PAYS or (kernel := self._kernels(self._n_encoded)) is None:
            return None
        from .bpe.compiled.encoder import compiled_encoder

        assert isinstance(self._model, BPE)
        assert self._parts is not None
        self._compiled = compiled_encoder(kernel, self._model, self._parts)
        if self._compiled is None:
            self._kernels = None
        else:
            self._model.merge_by(self._compiled)
            self._least_together = 1
        return self._compiled

    def _encode_left(self, texts: list[str]) -> list[Iterable[int]]:
        """The ids of texts that machine code does not encode, each of one or more parts."""
        assert self._parts is not None
        cut = list(map(self._parts, texts))
        self._learn(chain.from_iterable(cut))
        known = self._known.__getitem__
        return [chain.from_iterable(map(known, parts)) for parts in cut]

    def _learn(self, parts: Iterable[str]) -> None:
        """Encode chunks that were not seen before in one batch, if there are enough of them."""
        new = list(filterfalse(self._known.__contains__, set(parts)))
        if len(new) >= self._least_together:
            words = cut_parts(self._cut, new)
            self._model.learn(chain.from_iterable(words.values()))
            self._known.make_room(len(words))
            encode = self._model.encode
            self._known.update(
                {part: tuple(encode(cut)) for part, cut in words.items() if len(part) <= _KNOWN_LENGTH}
            )

    def encode_part(self, text: str, at_start: bool) -> Iterable[int]:
        """The ids of normalised text without added tokens; `at_start` of the whole text or not."""
        return self._model.encode(self._cut(text, at_start))

    def _split(self, text: str, special: bool) -> Iterator[str | int]:
        """Ids of added tokens, and the normalised text between them."""
        for part in self._added.split(text, special):
            if isinstance(part, int):
                yield part
            else:
                normal = part if self._normalize is None else self._normalize(part)
                yield from self._added_normalized.split(normal, special)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens included; bytes that are not UTF-8 become U+FFFD.

        TokenizerError for an id that is not in the vocabulary.
        """
        bytes_of = self._detokenizer.bytes_of
        return self._detokenizer.strip(b"".join([bytes_of(id) for id in ids]).decode(errors="replace"))

    def token_bytes(self, id: int) -> bytes:
        """The UTF-8 bytes, maybe of a part of a character, that a token stands for."""
        return self._detokenizer.bytes_of(id)

    def all_token_bytes(self) -> list[bytes]:
        """`token_bytes` of all ids, in less time than one by one."""
        return self._detokenizer.all_bytes()

    def strip_start(self, text: str) -> str:
        """`text`, the start of a decoded text, without the space that the encoder put there."""
        return self._detokenizer.strip(text)

    def token_text(self, id: int) -> str:
        """A token on its own: a special token's spelling, else decoded, U+FFFD for a part of a character."""
        if id in self._special_ids:
            return self._detokenizer.piece(id)
        return self._detokenizer.bytes_of(id).decode(errors="replace")

    def is_special(self, id: int) -> bool:
        return id in self._special_ids


class _Known(dict[str, tuple[int, ...]]):
    """The ids of chunks encoded before; asking for a new one encodes it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, part: str) -> tuple[int, ...]:
        ids = tuple(self._tokenizer.encode_part(part, False))
        if len(part) <= _KNOWN_LENGTH:
            self.make_room(1)
            self[part] = ids
        return ids

    def make_room(self, n: int) -> None:
        """Forget all chunks if there is no room for n more."""
        if len(self) + n > _KNOWN_PARTS:
            self.clear()


def _without_surrogates(text: str) -> str:
    """Half surrogate pairs joined, lone ones replaced: UTF-8 has neither."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", errors="replace")
    return text
