"""The keyboard of a chat: what is typed or pasted while an answer is written waits for the next prompt."""

from __future__ import annotations

import codecs
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..console import terminal

if TYPE_CHECKING:
    from prompt_toolkit.key_binding.key_processor import KeyPress

PASTE_BEGIN, PASTE_END = b"\x1b[200~", b"\x1b[201~"  # the marks of what is pasted
CTRL_C, NO_KEY = b"\x03", b"\x00"  # the latter stands for a function that no key has
REST_SECONDS = 0.5  # the pause in a paste, or within a character, after which the rest is not awaited
_BLOCK = 1 << 16


def keyboard() -> Keyboard | None:
    """The keyboard of stdin; None where it has no modes that could be set (Windows)."""
    return None if os.name == "nt" else Keyboard(sys.stdin.fileno())


class Keyboard:
    """The terminal with the file descriptor `fd`, without echo, key by key, as long as the context lasts.

    Keys are read within `collecting()` only; `take` hands them over. Ctrl-C and Ctrl-Z stay signals. Ctrl-Z
    gives the terminal back its former modes until the process goes on; then `on_resume` is called. The former
    modes are back at the end of the context, however it ends.
    """

    def __init__(self, fd: int) -> None:
        self.on_resume: Callable[[], None] = lambda: None
        self._fd = fd
        self._typed = b""
        self._pasting = False  # whether the terminal was asked to mark what is pasted
        self._former_modes: list[Any] = []
        self._interrupt = CTRL_C
        self._former_handler: Any = signal.SIG_DFL

    def __enter__(self) -> Self:
        import termios

        self._former_modes = termios.tcgetattr(self._fd)
        self._interrupt = self._former_modes[6][termios.VINTR]
        self._former_handler = signal.signal(signal.SIGTSTP, self._suspend)
        modes = termios.tcgetattr(self._fd)
        modes[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
        modes[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        self._set_modes(modes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._pasting = True  # a signal may have come while the prompt had them marked
            self._mark_pastes(False)
        finally:
            self._set_modes(self._former_modes)
            signal.signal(signal.SIGTSTP, self._former_handler)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Within the block a thread reads what is typed. At its end a paste that has begun is awaited."""
        reading, writing = os.pipe()
        reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._mark_pastes(True)
        reader.start()
        try:
            yield
        finally:
            try:
                os.close(writing)
                reader.join()
            finally:
                os.close(reading)
                self._mark_pastes(False)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Within the block the terminal has its former modes: lines are typed with echo, from stdin."""
        import termios

        modes = termios.tcgetattr(self._fd)
        self._set_modes(self._former_modes)
        try:
            yield
        finally:
            self._set_modes(modes)

    def take(self) -> list[KeyPress]:
        """The keys that were typed since the last call, see `as_keys`."""
        typed, self._typed = self._typed, b""
        return as_keys(typed) if typed else []

    def _read(self, end: int) -> None:
        """Read until the pipe `end` is closed and nothing is left that belongs to what was read."""
        ending = False
        while True:
            try:
                wanted = [self._fd] if ending else [self._fd, end]
                wait = None if not ending else REST_SECONDS if _is_cut(self._typed) else 0.0
                ready = select.select(wanted, [], [], wait)[0]
                if self._fd in ready:
                    block = os.read(self._fd, _BLOCK)
                    if not block:
                        return  # the terminal is gone
                    self._typed += block
                    self._heed_interrupt()
                elif ending:
                    return
                else:
                    ending = True
            except (OSError, ValueError):
                return

    def _heed_interrupt(self) -> None:
        """Send the signal of a Ctrl-C that was typed while the prompt still read keys: it came as a key. What
        was typed before it is dropped, as a terminal does."""
        _, interrupted, behind = self._typed.rpartition(self._interrupt)
        if interrupted and interrupted != NO_KEY:
            self._typed = behind
            os.kill(os.getpid(), signal.SIGINT)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Stop as Ctrl-Z does by default, with the terminal as it was; on return the process goes on."""
        import termios

        modes, marked = termios.tcgetattr(self._fd), self._pasting
        self._mark_pastes(False)
        self._set_modes(self._former_modes)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        signal.signal(number, self._suspend)
        self._set_modes(modes)
        self._mark_pastes(marked)
        self.on_resume()

    def _set_modes(self, modes: list[Any]) -> None:
        import termios

        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._fd, termios.TCSANOW, modes)

    def _mark_pastes(self, on: bool) -> None:
        if on != self._pasting:
            terminal.mark_pastes(on)
            self._pasting = on


def _is_cut(typed: bytes) -> bool:
    """Whether `typed` ends within a marked paste or within a character."""
    if typed.rfind(PASTE_BEGIN) > typed.rfind(PASTE_END):
        return True
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(typed[-4:])
    return bool(decoder.getstate()[0])


def as_keys(typed: bytes) -> list[KeyPress]:
    """What was typed as keys for prompt_toolkit: they edit the input line, but nothing sends it.

    Text, Enter and Tab become a paste, without line ends at both ends of the whole. What a terminal reports
    by itself (the cursor's position, a mouse) is left out. Bytes that are not UTF-8 are replaced.
    """
    from prompt_toolkit.input.vt100_parser import Vt100Parser
    from prompt_toolkit.key_binding.key_processor import KeyPress
    from prompt_toolkit.keys import Keys

    typed_keys: list[KeyPress] = []
    parser = Vt100Parser(typed_keys.append)
    text = typed.decode("utf-8", "replace")
    unfinished = typed.rfind(PASTE_BEGIN) > typed.rfind(PASTE_END)
    parser.feed_and_flush(text + (PASTE_END.decode() if unfinished else ""))

    newlines = (Keys.ControlM, Keys.ControlJ)
    reports = (Keys.CPRResponse, Keys.Vt100MouseEvent, Keys.Ignore)
    keys: list[KeyPress] = []
    escaped = False  # the key before was Escape, which makes another key of this one
    for press in typed_keys:
        escape, escaped = escaped, press.key == Keys.Escape
        if press.key in reports:
            continue
        if press.key in newlines:
            if escape:
                keys.pop()
            pasted = "\n"
        elif press.key == Keys.ControlI and not escape:
            pasted = "\t"
        elif press.key == Keys.BracketedPaste or (not isinstance(press.key, Keys) and not escape):
            pasted = press.data.replace("\r\n", "\n").replace("\r", "\n")
        else:
            keys.append(press)
            continue
        if keys and keys[-1].key == Keys.BracketedPaste:
            pasted = keys.pop().data + pasted
        keys.append(KeyPress(Keys.BracketedPaste, pasted))
    if keys and keys[0].key == Keys.BracketedPaste:
        keys[0] = KeyPress(Keys.BracketedPaste, keys[0].data.lstrip("\n"))
    if keys and keys[-1].key == Keys.BracketedPaste:
        keys[-1] = KeyPress(Keys.BracketedPaste, keys[-1].data.rstrip("\n"))
    return [press for press in keys if press.key != Keys.BracketedPaste or press.data]
