"""The patterns by which byte-level tokenizers cut a text into words, as their tokenizer.json spells them.

All of them take linear time. For each it is known how it reads for ASCII text and whether it always cuts at
spaces, which makes encoding faster.
"""

from __future__ import annotations

import re
from functools import cache

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}", other: str = r"[^\s\p{L}\p{N}]") -> str:
    """The pattern that llama-3, qwen2 and others share; they differ in how many digits make a word."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?{other}+[\r\n]*|{_SPACES}"


def _cased_words(digits: str, ending: str) -> str:
    """The pattern of o200k and tekken: capitals begin a word."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}{_UPPER}*{_LOWER}+{ending}|{start}{_UPPER}+{_LOWER}*{ending}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


# The pattern of GPT-2's tokenizer (Radford et al. 2019), which "ByteLevel" applies in a tokenizer.json.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = _words(r"\p{N}{1,3}")
QWEN2 = _words(r"\p{N}")
QWEN35 = _words(r"\p{N}", r"[\p{L}\p{M}]", r"[^\s\p{L}\p{M}\p{N}]")
O200K = _cased_words(r"\p{N}{1,3}", f"{_CONTRACTION}?")
TEKKEN = _cased_words(r"\p{N}", "")
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
NEWLINES = r"[^\n]+|[\n]+"
# Kimi K2 (tokenization_kimi.py): o200k's words, but Han characters are words of their own
KIMI_K2 = "[\\p{Han}]+|" + O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
# Rust's is_ascii_punctuation or a Unicode P category, as "Punctuation" in a tokenizer.json has it.
PUNCTUATION = r"[\p{P}$+<=>^`|~]"
DIGIT, DIGITS, UP_TO_3_DIGITS, ASCII_3_DIGITS = r"\p{N}", r"\p{N}+", r"\p{N}{1,3}", r"[0-9][0-9][0-9]"
SYMBOLS = r"[\p{P}$+<=>^~|]+"  # llama.cpp's for files without a pre-tokeniser

# Between a character and a single space with another character behind it, these always cut: none goes on over
# such a space, and each takes the space as the beginning of something.
_CUT_AT_SPACES = frozenset((GPT2, LLAMA3, QWEN2, QWEN35, O200K, TEKKEN, DEEPSEEK_V3))
# These never match white space, so that it makes no difference to them whether a text is cut there.
_WITHOUT_SPACES = frozenset(
    (CJK, PUNCTUATION, PUNCTUATION + "+", DIGIT, DIGITS, UP_TO_3_DIGITS, ASCII_3_DIGITS, SYMBOLS)
)


def known(source: str) -> bool:
    """Whether `in_ascii` can be asked for a pattern."""
    return source in _CUT_AT_SPACES or source in _WITHOUT_SPACES


def cuts_at_spaces(source: str) -> bool:
    return source in _CUT_AT_SPACES


_CLASSES = {  # the ASCII characters of a Unicode category, as they stand inside brackets
    "L": "A-Za-z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "N": "0-9",
    "P": r"!-#%-*,-/:;?@\[-\]_{}",
    "S": "$+<=>^`|~",
}
_NONE = "\\x80"  # stands for a category without ASCII characters
_PART = re.compile(r"\\p\{(\w+)\}|\\s|\\S|\\.|[\[\]]|[^\\\[\]]+", re.DOTALL)


@cache
def in_ascii(source: str) -> str:
    """A known pattern for the `re` module that matches in a text of ASCII what the pattern matches there.

    White space is Unicode's: the separators 0x1c to 0x1f, which `re` counts to it, are none.
    """
    parts = []
    bracket = False
    for part in _PART.finditer(source):
        text = part[0]
        if text in "[]":
            bracket = text == "["
        elif part[1] is not None:
            text = _CLASSES.get(part[1], _NONE)
        elif text == r"\s":
            text = r"\t-\r "
        elif text == r"\S":
            text = r"^\t-\r "
        else:
            parts.append(text)
            continue
        parts.append(text if bracket or text == "]" else f"[{text}]")
    return "".join(parts)
