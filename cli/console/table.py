"""Tables as text: columns for people, records where a terminal is too narrow for them, and markdown.

Cells may come out of a file: each is made one safe line.
"""

from __future__ import annotations

from collections.abc import Sequence

from .safe_text import one_line

Row = Sequence[str]


def table(header: Row, rows: Sequence[Row], right: Sequence[int] = ()) -> str:
    """Columns two spaces apart, never wrapped or cut; the columns numbered in `right` align right."""
    cells = [[one_line(cell) for cell in row] for row in (header, *rows)]
    widths = _widths(cells)
    left = [i for i in range(len(header)) if i not in right]
    return "".join("  ".join(_aligned(row, widths, left)).rstrip() + "\n" for row in cells)


def columns_that_fit(header: Row, rows: Sequence[Row], spare: Sequence[int], width: int | None) -> list[int]:
    """The numbers of the columns that a `table` of at most `width` (None: any) can have.

    The columns in `spare` are given up in that order; the others stay, even if they are too wide.
    """
    widths = _widths([[one_line(cell) for cell in row] for row in (header, *rows)])
    shown = list(range(len(header)))
    for column in spare:
        if width is None or sum(widths[i] + 2 for i in shown) - 2 <= width:
            break
        shown.remove(column)
    return shown


def records(header: Row, rows: Sequence[Row]) -> str:
    """Each row as lines of a column's name and its cell, without empty cells; a blank line between rows."""
    return "\n".join(pairs([(n, c) for n, c in zip(header, row, strict=True) if c.strip()]) for row in rows)


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, one pair a line."""
    width = max((len(name) for name, _ in rows), default=0)
    return "".join(f"{name.ljust(width)}  {one_line(value)}\n" for name, value in rows)


def markdown_table(header: Row, rows: Sequence[Row], left: Sequence[int] = (0,)) -> str:
    """A table whose source is aligned too; the columns numbered in `left` align left, the others right."""
    cells = [[one_line(cell).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = _widths(cells)
    rule = ["-" * w if i in left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "".join(
        "| " + " | ".join(_aligned(row, widths, left)) + " |\n" for row in (cells[0], rule, *cells[1:])
    )


def fits(text: str, width: int | None) -> bool:
    """Whether no line of `text` is wider than `width` columns of a terminal; None: whether it is or not."""
    from rich.cells import cell_len

    return width is None or all(cell_len(line) <= width for line in text.splitlines())


def _widths(cells: Sequence[Row]) -> list[int]:
    """The widths of columns on a terminal, where East Asian characters take two places."""
    from rich.cells import cell_len

    return [max(map(cell_len, column)) for column in zip(*cells, strict=True)]


def _aligned(row: Row, widths: Sequence[int], left: Sequence[int]) -> list[str]:
    """The cells filled up to the widths of their columns."""
    from rich.cells import cell_len

    room = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
    return [c + r if i in left else r + c for i, (c, r) in enumerate(zip(row, room, strict=True))]
