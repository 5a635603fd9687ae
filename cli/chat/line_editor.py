"""Reading a message at the prompt of a chat: line editing, a history, and messages of several lines."""

from __future__ import annotations

import os
import select
import shlex
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from ...quant.home import home
from ...quant.ownership import private_folder
from ...quant.programs import find_program
from ..console import terminal
from ..console.safe_text import utf8
from .keyboard import Keyboard, keyboard

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent

    from .completer import Completions

PROMPT, CONTINUATION = ">>> ", "... "
FENCE = '"""'  # begins and ends a message of several lines
PASTE_SECONDS = 0.02  # in which a terminal sends the next part of a paste
# What prompt_toolkit tries, in this order, where no variable names an editor.
EDITORS = ("/usr/bin/editor", "/usr/bin/nano", "/usr/bin/pico", "/usr/bin/vi", "/usr/bin/emacs")


def line_editor(commands: Completions) -> TerminalEditor | PlainLines:
    """The line editor of this terminal. `commands`: what Tab completes, see `ChatCompleter`.

    The prompt is not model text, so it goes to stderr wherever that is a terminal.
    """
    stream = sys.stderr if terminal.is_terminal(sys.stderr) else sys.stdout
    return TerminalEditor(stream, commands) if terminal.takes_escapes(stream) else PlainLines()


class PlainLines:
    """Lines of a dumb terminal, or of one that shows neither stream: nothing can be edited. Its methods are
    those of TerminalEditor."""

    def read(self, in_editor: str | None = None) -> str:
        if in_editor is not None:
            raise ValueError("this terminal cannot show an editor")
        lines = [_plain_line(PROMPT)]
        while _has_open_fence("\n".join(lines)):
            lines.append(_plain_line(CONTINUATION))
        return _unfenced("\n".join(lines))

    @contextmanager
    def answering(self, on_resume: Callable[[], None]) -> Iterator[None]:
        yield

    def asking(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class TerminalEditor:
    """A prompt on `stream` with editing keys, completion, and a history that outlives the session. A context
    manager around all of its messages."""

    def __init__(self, stream: TextIO, commands: Completions) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import ColorDepth, create_output

        from .completer import ChatCompleter
        from .pasted_text import ShownSafely

        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            output=create_output(stdout=stream),
            color_depth=None if terminal.takes_colour(stream) else ColorDepth.DEPTH_1_BIT,
            completer=ChatCompleter(commands),
            complete_while_typing=False,
            key_bindings=_key_bindings(),
            prompt_continuation=CONTINUATION,
            enable_suspend=True,
            enable_open_in_editor=True,
            input_processors=[ShownSafely()],
            tempfile_suffix=".md",
        )
        self._keyboard: Keyboard | None = keyboard()
        self._entered = ExitStack()

    def read(self, in_editor: str | None = None) -> str:
        """One message. EOFError on Ctrl-D, KeyboardInterrupt on Ctrl-C. `in_editor`: a text to begin with, in
        the editor that $VISUAL or $EDITOR names; ValueError where there is none."""
        from prompt_toolkit.application import get_app
        from prompt_toolkit.input.typeahead import store_typeahead

        if self._keyboard is not None:
            store_typeahead(self._session.input, self._keyboard.take())
        if in_editor is None:
            return _message(self._session.prompt(PROMPT))
        _check_editor()

        def open_editor() -> None:
            get_app().current_buffer.open_in_editor()

        return _message(self._session.prompt(PROMPT, default=in_editor, pre_run=open_editor))

    @contextmanager
    def answering(self, on_resume: Callable[[], None]) -> Iterator[None]:
        """What is typed within the block waits for the next `read`. `on_resume` is called after the process
        was stopped (Ctrl-Z) and goes on, since something else may have written to the terminal. A Ctrl-C that
        the prompt has read behind the message raises KeyboardInterrupt."""
        if self._keyboard is None:
            yield
            return
        self._heed_interrupt()
        self._keyboard.on_resume = on_resume
        with self._keyboard.collecting():
            yield

    def _heed_interrupt(self) -> None:
        from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
        from prompt_toolkit.keys import Keys

        ahead = get_typeahead(self._session.input)
        interrupts = [n for n, press in enumerate(ahead, 1) if press.key == Keys.ControlC]
        store_typeahead(self._session.input, ahead[interrupts[-1] if interrupts else 0 :])
        if interrupts:
            raise KeyboardInterrupt

    def asking(self) -> AbstractContextManager[None]:
        """Within the block lines are typed as in any other program, and may be read from stdin."""
        return nullcontext() if self._keyboard is None else self._keyboard.as_before()

    def __enter__(self) -> Self:
        if self._keyboard is not None:
            self._entered.enter_context(self._keyboard)
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.close()


def _history() -> History:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        return FileHistory(_history_file())
    except OSError as problem:
        why = f"{problem.filename}: {problem.strerror}" if problem.strerror else str(problem)
        terminal.remark(f"(the history is not kept: {why})")
        return InMemoryHistory()


def _history_file() -> Path:
    """The file of what was typed in earlier sessions, which only this user can read.

    It is made if it is missing, and closed to others if an older version left it open. Raises NoHome where
    another user could put a link in its place, and OSError where it cannot be written.
    """
    path = private_folder(home()) / "chat_history"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        status = os.fstat(descriptor)
        # Not /dev/null, to which some people link histories.
        if os.name != "nt" and stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return path


def _key_bindings() -> KeyBindings:
    """Enter sends a finished message; Alt-Enter and Ctrl-J begin a new line; Tab completes only commands."""
    from prompt_toolkit.application import get_app
    from prompt_toolkit.enums import DEFAULT_BUFFER
    from prompt_toolkit.filters import Condition, has_focus
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()
    in_message = has_focus(DEFAULT_BUFFER)

    @bindings.add("enter", filter=in_message)
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if _has_open_fence(buffer.text) or _more_is_pasted(event):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=in_message)
    @bindings.add("c-j", filter=in_message)
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    in_command = Condition(lambda: get_app().current_buffer.text.startswith("/"))

    @bindings.add("tab", filter=in_message & ~in_command)
    def tab(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\t")

    return bindings


def _more_is_pasted(event: KeyPressEvent) -> bool:
    """Whether this Enter is a line's end within a paste, on a terminal that does not mark what is pasted.

    Then more text has come together with it; or the paste has had lines before, and its next part is there.
    """
    if any(press.key == press.data for press in event.key_processor.input_queue):
        return True
    if "\n" not in event.current_buffer.text or os.name == "nt":
        return False
    return bool(select.select([sys.stdin], [], [], PASTE_SECONDS)[0])


def _has_open_fence(text: str) -> bool:
    return text.startswith(FENCE) and FENCE not in text.removeprefix(FENCE)


def _message(typed: str) -> str:
    """The message in what prompt_toolkit returns, where bytes that are not UTF-8 are lone surrogates."""
    return _unfenced(utf8(typed))


def _unfenced(text: str) -> str:
    """A message without the fences around it; what follows the second one is dropped."""
    if not text.startswith(FENCE):
        return text
    return text.removeprefix(FENCE).split(FENCE)[0].strip("\n")


def _check_editor() -> None:
    """ValueError where there is no editor; prompt_toolkit would only do nothing."""
    chosen = [os.environ.get(name, "") for name in ("VISUAL", "EDITOR")]
    programs = [shlex.split(command)[0] for command in chosen if command.strip()]
    if not any(_can_be_run(program) for program in (*programs, *EDITORS)):
        raise ValueError("there is no editor; the variable EDITOR names one")


def _can_be_run(program: str) -> bool:
    """Whether `program` is a path of one, or the name of one on PATH."""
    return os.access(program, os.X_OK) if os.path.dirname(program) else find_program(program) is not None


def _plain_line(prompt: str) -> str:
    """Read a line where nothing can be edited: a dumb terminal, or one that shows neither stream."""
    terminal.ask(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
