"""Foreign text made safe to show: names, metadata, error messages, and what a model writes.

Two sets of characters never reach a terminal or a table as they are:

- what commands a terminal or rewrites what is seen: control characters (C0, DEL, C1), the bidirectional
  embeddings, overrides and isolates (CVE-2021-42574, "Trojan Source"), the deprecated formatting characters
  U+206A–206F, interlinear annotations, and tag characters, which carry text that nobody sees. Lone
  surrogates, which stand for bytes of a file name that are not UTF-8, cannot be written at all.
- in names, also what is invisible and makes two of them look alike: the rest of Unicode's
  Default_Ignorable_Code_Point, the directional marks among them.

Each becomes U+FFFD (�), so that a reader sees that there was something. In texts of several lines the second
set stays: U+200E, U+200F and U+061C order punctuation in Arabic and Hebrew and can turn no letters around,
and U+200B separates Thai words. Everywhere stay the joiners U+200C and U+200D, which Indic scripts, Persian
and emoji need, and variation selectors. Arabic and Hebrew need no embeddings to be shown: terminals order
them by their letters.
"""

from __future__ import annotations

import json
import re
from typing import Any

REPLACEMENT = "\ufffd"

_COMMANDS = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # but not tab and newline
    r"\u202a-\u202e\u2066-\u206f\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff"
)
_INVISIBLE = (
    r"\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2060-\u2065\u3164\ufeff\uffa0\ufff0-\ufff8"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0080-\U000e0fff"
)
_IN_LINES = re.compile(f"[{_COMMANDS}]")
_IN_NAMES = re.compile(f"[{_COMMANDS}{_INVISIBLE}]")
_IN_EDITOR = re.compile(f"[{_COMMANDS}\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_IN_JSON = re.compile(f"[{_COMMANDS}{_INVISIBLE}\u2028\u2029]")
_LINE_ENDS = re.compile("\r\n|[\u2028\u2029]")
_BREAKS = "\t\n\v\f\r\x85\u2028\u2029"
_AROUND_BREAK = re.compile(f"[ {_BREAKS}]*[{_BREAKS}][ {_BREAKS}]*")


def one_line(text: str) -> str:
    """A name, a cell of a table or a message as one line: breaks and tabs become a space."""
    return _IN_NAMES.sub(REPLACEMENT, _AROUND_BREAK.sub(" ", text.strip(_BREAKS)))


def lines(text: str) -> str:
    """A text that may have several lines, such as a model's answer; tabs stay."""
    return _IN_LINES.sub(REPLACEMENT, _LINE_ENDS.sub("\n", text))


def characters(text: str) -> str:
    """As `lines`, but each character stays one: for a line editor, whose cursor counts them."""
    return _IN_EDITOR.sub(REPLACEMENT, text)


def utf8(text: str) -> str:
    """The text with U+FFFD for lone surrogates, so that it can be written and tokenised; else as it is."""
    return _SURROGATES.sub(REPLACEMENT, text)


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON that can be read and shown: what `one_line` would replace is escaped as \\uXXXX.

    Lone surrogates become U+FFFD, because strict parsers refuse them even when escaped (RFC 7493).
    """
    return _IN_JSON.sub(_escaped, json.dumps(value, ensure_ascii=False, indent=indent))


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if "\ud800" <= character <= "\udfff":
        return REPLACEMENT
    return json.dumps(character)[1:-1] if character > "\x9f" else f"\\u{ord(character):04x}"
