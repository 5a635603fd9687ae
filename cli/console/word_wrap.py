"""Breaking lines between words while a text is streamed to a terminal."""

from __future__ import annotations

from collections.abc import Callable

LEAST_COLUMNS = 20  # narrower terminals break lines by themselves, anywhere
TAB = 8  # columns
FENCES = ("```", "~~~")  # begin and end a block of code in Markdown
ZERO_WIDTH_JOINER = "\u200d"
SKIN_TONES = range(0x1F3FB, 0x1F400)
REGIONAL_INDICATORS = range(0x1F1E6, 0x1F200)  # two of them make a flag
# Wide punctuation that may not begin, or end, a line (as in JIS X 4051, in short).
CLOSING = frozenset("、。，．！？：；）」』】〉》〕］｝ーぁぃぅぇぉっゃゅょァィゥェォッャュョ々…‥")
OPENING = frozenset("（「『【〈《〔［｛")


class WordWrap:
    """Turns pieces of a text into what a terminal of `columns()` columns is to be sent.

    Everything is shown at once. The word at the end of a line, if it turns out to be too long for it, is
    erased and written again on the next line. Lines end at spaces, and between wide characters (CJK). The
    last column stays empty, because terminals differ in where their cursor is behind it. Lines of a block of
    code, rows of a table and words longer than a line, such as addresses, are left to the terminal. The
    number of columns may change at any time.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._width = columns()
        self._in_code = False
        self.begin_line()

    def begin_line(self) -> None:
        """The cursor is at the beginning of a line, whatever was written before."""
        self._line = ""  # its first visible characters
        self._column = 0  # cells that are used
        self._word = ""  # what is moved if it does not fit
        self._is_long = False  # the word is longer than a line; then `_word` is only its last character
        self._is_full = False  # a space was left out, because there is no room for anything more

    def push(self, text: str) -> str:
        """What shows `text` behind what was pushed before."""
        width = self._columns()
        if width != self._width:  # nobody knows what the terminal did to the line
            self._width, self._word = width, ""
            self._column %= max(1, width)
        return "".join(map(self._show, text))

    def _show(self, char: str) -> str:
        if char == "\n":
            if self._line.startswith(FENCES):
                self._in_code = not self._in_code
            self.begin_line()
            return char
        if len(self._line) < len(FENCES[0]) and (self._line or not char.isspace()):
            self._line += char
        if self._in_code or self._line.startswith((*FENCES, "|")) or self._width < LEAST_COLUMNS:
            self._word = ""
            self._column = (self._column + _cells(char)) % max(1, self._width)
            return char
        return self._space(char) if char in " \t" else self._visible(char)

    def _end_word(self) -> None:
        self._word, self._is_long = "", False

    def _space(self, char: str) -> str:
        self._end_word()
        used = self._column + (TAB - self._column % TAB if char == "\t" else 1)
        if used >= self._width:
            self._is_full = True
            return ""
        self._column = used
        return char

    def _visible(self, char: str) -> str:
        shown = ""
        if self._is_full:
            shown, self._column, self._is_full = "\n", 0, False
        if self._word and _may_break(self._word, char):
            self._end_word()
        if self._is_long:
            self._word = char
            self._column = (self._column + _cells(char)) % self._width
            return shown + char
        before = _cells(self._word)
        start = self._column - before
        self._word += char
        cells = _cells(self._word)
        if start + cells < self._width or start == 0:
            self._is_long = cells >= self._width
            self._column = (start + cells) % self._width
            return shown + char
        self._column = cells
        erase = f"\x1b[{before}D\x1b[K" if before else ""
        return f"{erase}\n{self._word}"


def _may_break(word: str, char: str) -> bool:
    """Whether a line may end between `word` and `char`, neither of which is a space."""
    last = word[-1]
    if last == ZERO_WIDTH_JOINER or _cells(char) == 0 or ord(char) in SKIN_TONES:
        return False
    if ord(char) in REGIONAL_INDICATORS and ord(last) in REGIONAL_INDICATORS:
        return len(word) % 2 == 0
    if char in CLOSING or last in OPENING:
        return False
    return _cells(char) == 2 or _cells(last) == 2 or (_cells(last) == 0 and _cells(word) == 2)


def _cells(text: str) -> int:
    """The columns that `text` takes; a character that the terminal shows in its own way counts as one."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth

    cells = wcswidth(text)
    return cells if cells >= 0 else len(text)
