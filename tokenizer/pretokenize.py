"""Pre-tokenisation: cutting a text into the words that byte-pair encoding never merges across.

A `Step` cuts one piece into smaller ones, in order; `chain_steps` runs several. The patterns need
Unicode classes such as \\p{L} and are therefore compiled with the `regex` package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import regex

from .errors import TokenizerError

# Arguments: the piece, and whether it begins where the whole text begins.
Step = Callable[[str, bool], Sequence[str]]

# The pattern of GPT-2's tokenizer (Radford et al. 2019), which "ByteLevel" applies in a tokenizer.json.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Rust's is_ascii_punctuation or a Unicode P category, as "Punctuation" in a tokenizer.json has it.
PUNCTUATION = r"[\p{P}$+<=>^`|~]"

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
    try:
        if "&&" not in source:
            return regex.compile(source, regex.V0)
        # V1 has intersections of character classes, but folds case more fully than the others do
        return regex.compile(f"(?-f:{source})", regex.V1)
    except (regex.error, OverflowError, RecursionError) as error:
        raise TokenizerError(f"bad pre-tokenizer pattern {source[:80]!a}: {error}") from None


def split(
    pattern: regex.Pattern[str],
    behavior: str = "Isolated",
    invert: bool = False,
    seconds: float | None = None,
) -> Step:
    """Cut at the matches of a pattern; `behavior` says what becomes of the matches.

    Removed drops them, Isolated makes them pieces, MergedWithPrevious and MergedWithNext join each to
    its neighbour, Contiguous joins those that touch. `invert` swaps matches and the text between.
    A pattern that backtracks for longer than `seconds` is a TokenizerError (such watching takes time).
    """

    def isolated(text: str, at_start: bool) -> Sequence[str]:
        return list(filter(None, whole.split(text, timeout=seconds)))

    def general(text: str, at_start: bool) -> Sequence[str]:
        return _cut(text, list(_spans(pattern, text, invert, seconds)), behavior)

    def watched(text: str, at_start: bool) -> Sequence[str]:
        try:
            return run(text, at_start)
        except TimeoutError:
            raise TokenizerError(f"a pre-tokenizer pattern takes over {seconds:.0f} s") from None

    if behavior not in BEHAVIORS:
        raise TokenizerError(f"unsupported split behavior {behavior!a}")
    run = general
    if behavior == "Isolated" and not pattern.groups:
        whole = regex.compile(f"({pattern.pattern})", pattern.flags)  # split() gives groups back
        run = isolated
    return run if seconds is None else watched


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


def prefix_space(text: str, at_start: bool) -> Sequence[str]:
    """A space in front unless there is one ("add_prefix_space" of a tokenizer.json)."""
    return [text if text.startswith(" ") else " " + text]


def spell_bytes(text: str, at_start: bool) -> Sequence[str]:
    """One piece in, the same piece in the byte symbols of GPT-2 out."""
    return [bytes_to_symbols(text)]


def metaspace(replacement: str, prepend: str, cut: bool) -> Step:
    """Spaces as `replacement`, one put in front ("always", "first" of a text, "never"), cut before each."""
    if prepend not in ("always", "first", "never"):
        raise TokenizerError(f"unsupported prepend_scheme {prepend!a}")
    before = split(regex.compile(regex.escape(replacement)), "MergedWithNext")

    def run(text: str, at_start: bool) -> Sequence[str]:
        text = text.replace(" ", replacement)
        if (prepend == "always" or (prepend == "first" and at_start)) and not text.startswith(replacement):
            text = replacement + text
        return before(text, at_start) if cut else [text]

    return run
