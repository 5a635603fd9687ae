"""A page of text that views draw on: pieces in colours, within the columns that there are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

from ..console import terminal
from ..console.safe_text import one_line

Piece = tuple[str, str]  # text, and its SGR colour or ""

BOLD, DIM = "1", "2"
# From unlikely to certain: dark violet to yellow, which differ in brightness as well as in hue (viridis).
RAMP = ("48;5;53;97", "48;5;60;97", "48;5;30;97", "48;5;71;30", "48;5;226;30")
BANDS = ("48;5;24;97", "48;5;53;97")  # of neighbouring tokens
_SHADES, _PLAIN_SHADES = " ·░▒▓█", " .:+*#"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SPELLED = {"\n": "↵", "\r": "␍", "\t": "⇥"}
_PLAIN_SPELLED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Page:
    """Lines of at most `width` columns; `plain` has nothing but ASCII where kukri draws (dumb terminals)."""

    def __init__(self, width: int | None = None, plain: bool | None = None) -> None:
        self.width = max(24, shutil.get_terminal_size().columns if width is None else width)
        self.plain = os.environ.get("TERM") == "dumb" if plain is None else plain
        self.pieces: list[Piece] = []

    def line(self, *pieces: Piece | str) -> None:
        """One line. It is cut where the page ends."""
        left = self.width
        for piece in pieces:
            text, colour = (piece, "") if isinstance(piece, str) else piece
            if cell_len(text) > left:
                text = set_cell_size(text, left)
            left -= cell_len(text)
            self.pieces.append((text, colour))
            if left <= 0:
                break
        self._strip()
        self.pieces.append(("\n", ""))

    def _strip(self) -> None:
        """Drop blanks at the end of a line that have no background."""
        while self.pieces and self.pieces[-1][0] != "\n":
            text, colour = self.pieces[-1]
            if "48;" in colour:
                return
            if text := text.rstrip(" "):
                self.pieces[-1] = (text, colour)
                return
            self.pieces.pop()

    def heading(self, text: str) -> None:
        """A line that begins something, behind a blank one."""
        if self.pieces:
            self.line()
        for row in self.wrapped(text):
            self.line((row, BOLD))

    def text(self, text: str, colour: str = "") -> None:
        """A paragraph, broken between words."""
        for row in self.wrapped(text):
            self.line((row, colour))

    def wrapped(self, text: str) -> list[str]:
        """The lines of a paragraph."""
        rows, row = [], ""
        for word in text.split(" "):
            if row and cell_len(row) + 1 + cell_len(word) > self.width:
                rows.append(row)
                row = word
            else:
                row = f"{row} {word}" if row else word
        return [*rows, row]

    def flow(self, pieces: Iterable[Piece], gap: str = "") -> None:
        """Pieces one behind the other, with `gap` between them; a piece goes to the next line where it does
        not fit."""
        row: list[Piece] = []
        used = 0
        for text, colour in pieces:
            size = cell_len(text) + (cell_len(gap) if row else 0)
            if row and used + size > self.width:
                self.line(*row)
                row, used, size = [], 0, cell_len(text)
            if row and gap:
                row.append((gap, DIM))
            row.append((text, colour))
            used += size
        if row:
            self.line(*row)

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[Piece | str]], right: Sequence[int] = ()
    ) -> None:
        """Columns two spaces apart, as wide as they are; the columns numbered in `right` align right."""
        cells = [[(cell, "") if isinstance(cell, str) else cell for cell in row] for row in rows]
        heads: list[Piece] = [(name, DIM) for name in header]
        widths = [max(cell_len(row[i][0]) for row in (heads, *cells)) for i in range(len(header))]
        for row in (heads, *cells):
            pieces: list[Piece] = []
            for i, (text, colour) in enumerate(row):
                room = " " * (widths[i] - cell_len(text))
                pieces += [(room, ""), (text, colour)] if i in right else [(text, colour), (room, "")]
                pieces.append(("  ", ""))
            self.line(*pieces)

    def bar(self, share: float, size: int) -> str:
        """A bar of `size` columns that `share`, 0 to 1, fills."""
        share = min(1.0, max(0.0, share))
        if self.plain:
            return ("#" * round(share * size)).ljust(size)
        whole, part = divmod(round(share * size * 8), 8)
        return ("█" * whole + (_EIGHTHS[part] if part else "")).ljust(size)

    def shade(self, share: float) -> str:
        """A character that is the darker, the larger `share`, 0 to 1."""
        shades = _PLAIN_SHADES if self.plain else _SHADES
        return shades[sum(share >= edge for edge in (0.02, 0.2, 0.4, 0.6, 0.8))]

    def visible(self, text: str, size: int | None = None) -> str:
        """A token's text on one line, with blanks that can be seen, cut to `size` columns."""
        for character, shown in (_PLAIN_SPELLED if self.plain else _SPELLED).items():
            text = text.replace(character, shown)
        body = text.strip(" ")
        blank = "_" if self.plain else "·"
        before = len(text) - len(text.lstrip(" ")) if body else len(text)
        behind = len(text) - before - len(body)
        shown = blank * before + one_line(body) + blank * behind
        if size is None or cell_len(shown) <= size:
            return shown
        end = "~" if self.plain else "…"
        return set_cell_size(shown, size - 1) + end

    def arrow(self) -> str:
        return "->" if self.plain else "→"

    def write(self) -> None:
        """Write the page to stdout."""
        terminal.write_painted(self.pieces)


def level(probability: float) -> str:
    """The colour of a probability."""
    return RAMP[sum(probability >= edge for edge in (0.05, 0.2, 0.5, 0.9))]


def percent(probability: float | None) -> str:
    """A probability in three or four columns: 97%, 3.1%, <.1%."""
    if probability is None:
        return "-"
    value = 100 * probability
    return f"{value:.0f}%" if value >= 9.95 else f"{value:.1f}%" if value >= 0.1 else "<.1%"
