"""Pre-tokenisation: cutting a text into the words that byte-pair encoding never merges across.

A `Step` cuts one piece into smaller ones, in order; `chain_steps` runs several. The patterns need
Unicode classes such as \\p{L} and are therefore compiled with the `regex` package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ..errors import TokenizerError
from .patterns import cuts_at_spaces, in_ascii, known

if TYPE_CHECKING:
    import regex

# Arguments: the piece, and whether it begins where the whole text begins.
Step = Callable[[str, bool], Sequence[str]]

BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")


def _byte_symbols() -> list[str]:
    """GPT-2's spelling of the 256 bytes: printable Latin-1 as itself, the rest from U+0100 up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_SYMBOLS = _byte_symbols()
_SYMBOL_TABLE = dict(enumerate(BYTE_SYMBOLS))


def bytes_to_symbols(text: str) -> str:
    """The UTF-8 bytes of `text`, each as its GPT-2 symbol."""
    return text.encode().decode("latin-1").translate(_SYMBOL_TABLE)


def compile_pattern(source: str) -> regex.Pattern[str]:
    """A pattern in the syntax of Oniguruma, which `tokenizers` uses; TokenizerError if it is not one."""
    import regex

    try:
        if "&&" not in source:
            return regex.compile(source, regex.V0)
        # V1 has intersections of character classes, but folds case more fully than the others do
        return regex.compile(f"(?-f:{source})", regex.V1)
    except (regex.error, OverflowError, RecursionError) as error:
        raise TokenizerError(f"bad pre-tokenizer pattern {source[:80]!a}: {error}") from None


class Split:
    """Cuts at the matches of a pattern; `behavior` says what becomes of the matches.

    Removed drops them, Isolated makes them pieces, MergedWithPrevious and MergedWithNext join each to
    its neighbour, Contiguous joins those that touch. `invert` swaps matches and the text between.
    A pattern that backtracks for longer than `seconds` is a TokenizerError (such watching takes time).
    """

    def __init__(
        self, source: str, behavior: str = "Isolated", invert: bool = False, seconds: float | None = None
    ) -> None:
        if behavior not in BEHAVIORS:
            raise TokenizerError(f"unsupported split behavior {behavior[:80]!a}")
        self.source = source
        self.behavior = behavior
        self.invert = invert
        self._seconds = seconds
        self._isolates = behavior == "Isolated"
        if not known(source):
            self._isolates = not self._pattern.groups and self._isolates  # and it is a pattern at all

    def __call__(self, text: str, at_start: bool) -> Sequence[str]:
        if self._isolates and text.isascii() and self._ascii is not None:
            return list(filter(None, self._ascii(text)))
        try:
            if self._isolates:
                return list(filter(None, self._whole.split(text, timeout=self._seconds)))
            return _cut(text, list(_spans(self._pattern, text, self.invert, self._seconds)), self.behavior)
        except TimeoutError:
            raise TokenizerError(f"a pre-tokenizer pattern takes over {self._seconds:.0f} s") from None

    @cached_property
    def _ascii(self) -> Callable[[str], list[str]] | None:
        """The pattern for texts of ASCII only, without the `regex` package, whose import takes time."""
        return re.compile(f"({in_ascii(self.source)})").split if known(self.source) else None

    @cached_property
    def _pattern(self) -> regex.Pattern[str]:
        return compile_pattern(self.source)

    @cached_property
    def _whole(self) -> regex.Pattern[str]:
        import regex

        return regex.compile(f"({self._pattern.pattern})", self._pattern.flags)  # split() gives groups back


def _spans(
    pattern: regex.Pattern[str], text: str, invert: bool, seconds: float | None
) -> Iterator[tuple[int, int, bool]]:
    """(start, stop, is a match) over the whole text, without empty spans."""
    done = 0
    for match in pattern.finditer(text, timeout=seconds):
        start, stop = match.span()
        if done < start:
            yield done, start, invert
        if start < stop:
            yield start, stop, not invert
        done = stop
    if done < len(text):
        yield done, len(text), invert


def _cut(text: str, parts: list[tuple[int, int, bool]], behavior: str) -> list[str]:
    """Parts of the text, (start, stop, is a match), joined as `behavior` says."""
    if behavior == "Removed":
        return [text[a:b] for a, b, matched in parts if not matched]
    cuts = [0]
    for (_, _, before), (start, _, matched) in pairwise(parts):
        if behavior == "MergedWithPrevious":
            # of several matches in a row only the first joins the text before it
            joined = matched and not before
        elif behavior == "MergedWithNext":
            joined = before and not matched
        else:
            joined = behavior == "Contiguous" and matched == before
        if not joined:
            cuts.append(start)
    return [text[a:b] for a, b in pairwise([*cuts, len(text)])] if parts else []


# A piece for `parts_at_spaces`: it ends where a single space with a character on either side follows.
_PART = re.compile(r"\s*\S+(?:(?! \S)\s+\S*)*|\s+")


@dataclass(frozen=True)
class PartsAtSpaces:
    """A quick function that cuts a text where `steps` will always cut it too.

    Most of its pieces are single words, so that it pays to remember what became of them.
    """

    steps: tuple[Step, ...]

    def __call__(self, text: str) -> list[str]:
        return _PART.findall(text)


def parts_at_spaces(steps: Sequence[Step]) -> PartsAtSpaces | None:
    """None if it is not known where the steps cut."""
    patterns = [step.source for step in steps if isinstance(step, Split) and step.behavior != "Removed"]
    if len(patterns) + steps.count(spell_bytes) < len(steps) or not all(map(known, patterns)):
        return None
    isolating = [step.source for step in steps if isinstance(step, Split) and step.behavior == "Isolated"]
    return PartsAtSpaces(tuple(steps)) if any(map(cuts_at_spaces, isolating)) else None


def cut_parts(cut: Step, parts: Iterable[str]) -> dict[str, Sequence[str]]:
    """What becomes of each of many parts from `parts_at_spaces`."""
    joinable: tuple[list[str], list[str]] = ([], [])
    words: dict[str, Sequence[str]] = {}
    for part in parts:
        if part[0] == " " and len(part) > 1 and not (part[1].isspace() or part[-1].isspace()):
            joinable[part.isascii()].append(part)
        else:
            words[part] = cut(part, False)
    for some in joinable:
        # put together they are a text that would be cut into these parts
        text = "".join(some)
        found = cut(text, False) if some else []
        if sum(map(len, found)) != len(text):  # spelled in another way
            words.update((part, cut(part, False)) for part in some)
            continue
        ends = list(accumulate(map(len, found)))
        place = dict(zip(ends, range(1, len(ends) + 1), strict=True))
        first = 0
        for part, end in zip(some, accumulate(map(len, some)), strict=True):
            stop = place[end]
            words[part] = found[first:stop]
            first = stop
    return words


def chain_steps(steps: Sequence[Step]) -> Step:
    """All steps, each on every piece of the one before."""
    if len(steps) == 1:
        return steps[0]

    def run(text: str, at_start: bool) -> Sequence[str]:
        pieces: Sequence[str] = [text]
        for step in steps:
            if len(pieces) == 1:
                pieces = step(pieces[0], at_start)
            else:
                pieces = [q for i, p in enumerate(pieces) for q in step(p, at_start and i == 0)]
        return pieces

    return run


def no_step(text: str, at_start: bool) -> Sequence[str]:
    return [text]


def prefix_space(text: str, at_start: bool) -> Sequence[str]:
    """A space in front unless there is one ("add_prefix_space" of a tokenizer.json)."""
    return [text if text.startswith(" ") else " " + text]


def spell_bytes(text: str, at_start: bool) -> Sequence[str]:
    """One piece in, the same piece in the byte symbols of GPT-2 out."""
    return [bytes_to_symbols(text)]


def metaspace(replacement: str, prepend: str, cut: bool) -> Step:
    """Spaces as `replacement`, one put in front ("always", "first" of a text, "never"), cut before each."""
    if prepend not in ("always", "first", "never"):
        raise TokenizerError(f"unsupported prepend_scheme {prepend[:80]!a}")
    before = Split(re.escape(replacement), "MergedWithNext")

    def run(text: str, at_start: bool) -> Sequence[str]:
        text = text.replace(" ", replacement)
        if (prepend == "always" or (prepend == "first" and at_start)) and not text.startswith(replacement):
            text = replacement + text
        return before(text, at_start) if cut else [text]

    return run
