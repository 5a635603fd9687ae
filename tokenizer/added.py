"""Added tokens: entries of the vocabulary that are matched in a text before pre-tokenisation."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

# Unicode White_Space. str.isspace() would also count the separators U+001C to U+001F.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


MOST_FIRST = 256  # first characters that a pattern tells apart one by one


@dataclass(frozen=True)
class AddedToken:
    """One added token with the flags of a tokenizer.json.

    `special` marks control tokens (of a GGUF: types CONTROL and UNKNOWN). `normalized` tokens are looked
    for after the text has been normalised, and spelled as they are then; the others before. `lstrip` and
    `rstrip` swallow the white space next to the token; `single_word` forbids letters and digits there.
    """

    id: int
    content: str
    special: bool = False
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class AddedTokens:
    """Splits text at added tokens: leftmost first, and of those that start there the longest.

    Tokens are told apart by their first two characters (one regular expression) and then by dictionary
    look-ups, one for each length that occurs, so thousands of them cost no more than a few.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._by_content: dict[str, AddedToken] = {}
        for token in tokens:
            if token.content:
                self._by_content.setdefault(token.content, token)
        by_start: dict[str, int] = {}  # a bit for each length that occurs
        for content in self._by_content:
            start = content[:2]
            by_start[start] = by_start.get(start, 0) | 1 << len(content)
        lengths = {bits: _set_bits(bits) for bits in set(by_start.values())}  # most starts have the same
        self._lengths = {start: lengths[bits] for start, bits in by_start.items()}
        self._candidate = re.compile(_beginnings(by_start))

    def __bool__(self) -> bool:
        return bool(self._by_content)

    def split(self, text: str, special: bool) -> Iterator[str | int]:
        """The text in order, as plain pieces (never empty) and the ids of the tokens between them.

        Without `special` a special token is stepped over as a whole and stays in its plain piece.
        """
        if not self._by_content:
            if text:
                yield text
            return
        done = position = 0
        while found := self._candidate.search(text, position):
            position = found.start()
            token = self._longest(text, position)
            if token is None:
                position += 1
                continue
            start, position = position, position + len(token.content)
            passed_over = token.special and not special
            if passed_over or (token.single_word and _touches_word(text, start, position)):
                continue
            if token.lstrip:
                start = max(done, len(text[:start].rstrip(WHITE_SPACE)))
            if token.rstrip:
                position = len(text) - len(text[position:].lstrip(WHITE_SPACE))
            if done < start:
                yield text[done:start]
            yield token.id
            done = position
        if done < len(text):
            yield text[done:]

    def starts(self, text: str) -> Iterator[int]:
        """Every position where a token is spelled, also inside another one."""
        if self._by_content:
            position = 0
            while found := self._candidate.search(text, position):
                if self._longest(text, found.start()) is not None:
                    yield found.start()
                position = found.start() + 1

    def _longest(self, text: str, position: int) -> AddedToken | None:
        for length in self._lengths.get(text[position : position + 2], ()):
            token = self._by_content.get(text[position : position + length])
            if token is not None:
                return token
        return self._by_content.get(text[position])


def _set_bits(bits: int) -> tuple[int, ...]:
    """The numbers of the bits that are 1, the highest first."""
    return tuple(i for i in range(bits.bit_length() - 1, -1, -1) if bits >> i & 1)


def _beginnings(starts: Collection[str]) -> str:
    """A pattern for where a token may begin, given the one or two characters that each starts with.

    Where there are many first characters it does not look at the second ones.
    """
    firsts = sorted({start[0] for start in starts})
    if len(firsts) <= MOST_FIRST:
        seconds: dict[str, set[str]] = {first: set() for first in firsts}
        for start in starts:
            seconds[start[0]].add(start[1:])
        return "|".join(_prefix(first, seen) for first, seen in seconds.items())
    near = "".join(re.escape(first) for first in firsts if first < "\U00010000")
    # Python looks up characters of the first plane in a table, but compares with each of the others.
    far = "\U00010000-\U0010ffff" if firsts[-1] >= "\U00010000" else ""
    return f"[{near}{far}]"


def _prefix(first: str, seconds: set[str]) -> str:
    """A pattern for the first two characters; "" among the seconds is a token of one character."""
    if "" in seconds:
        return re.escape(first)
    return re.escape(first) + "[" + "".join(re.escape(second) for second in sorted(seconds)) + "]"


def _touches_word(text: str, start: int, stop: int) -> bool:
    import regex  # its \\w is Unicode's, that of `re` is not

    before = start > 0 and regex.match(r"\w", text[start - 1])
    after = stop < len(text) and regex.match(r"\w", text[stop])
    return bool(before or after)
