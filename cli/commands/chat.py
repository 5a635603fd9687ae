"""`llm chat`: a conversation, typed line by line, or one answer to what is piped in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from ...quant.home import home
from ..chat.session import Session
from ..chat.slash import COMMANDS, handle
from ..console import terminal
from ..console.explain import explain
from ..console.options import (
    DEFAULT_MODEL,
    GenerationOptions,
    Model_,
    TextOrJson,
    flag,
    with_generation_options,
)
from ..console.prompt import read_prompt
from .run import answer, refuse_system_of_raw

FENCE = '"""'


@with_generation_options
def chat(
    options: GenerationOptions,
    model: Model_ = DEFAULT_MODEL,
    no_stdin: Annotated[bool, flag("--no-stdin", help="Do not read stdin, even if it is a pipe.")] = False,
) -> None:
    """Hold a conversation.

    With text piped into it, it answers once and ends.
    """
    params = options.sampling()
    if not terminal.is_terminal(sys.stdin):
        if no_stdin:
            raise typer.BadParameter(
                "stdin is no terminal, and --no-stdin forbids to read it, so there is nothing to answer; "
                "llm run takes a prompt as an argument"
            )
        refuse_system_of_raw(options)
        text = read_prompt([], no_stdin)
        with closing(options.load(model)) as loaded:
            answer(loaded, model, text, options, params)
        return
    if options.output is TextOrJson.json:
        raise typer.BadParameter("-o json is for one answer: pipe the prompt, or use llm run")
    with closing(options.load(model)) as loaded:
        session = Session(loaded, model, options, params)
        terminal.remark(
            f"{Path(model).name}, context {loaded.context} tokens. /help lists commands, Ctrl-D leaves."
        )
        if session.conversation.raw and not options.raw:
            terminal.note("This model has no chat template: it continues text, it does not answer it.")
        converse(session)


def converse(session: Session) -> None:
    """Read, answer, repeat, until Ctrl-D or /bye. An error costs one turn, not the session."""
    prompt = _line_editor()
    while True:
        try:
            text = _read_message(prompt)
        except KeyboardInterrupt:
            terminal.remark("(Ctrl-D or /bye leaves)")
            continue
        except EOFError:
            return
        try:
            if text.startswith("/"):
                handle(session, text)
            elif text.strip():
                session.say(text)
            elif session.cut:
                session.answer()
        except EOFError:
            return
        except (ValueError, OSError, RuntimeError, ArithmeticError) as problem:
            terminal.error(explain(problem))
        except KeyboardInterrupt:
            terminal.remark("(interrupted)")


def _read_message(prompt: Callable[[str], str]) -> str:
    text = prompt(">>> ")
    if not text.startswith(FENCE):
        return text
    lines = [text.removeprefix(FENCE)]
    while FENCE not in lines[-1]:
        lines.append(prompt("... "))
    lines[-1] = lines[-1].split(FENCE)[0]
    return "\n".join(lines).strip("\n")


def _line_editor() -> Callable[[str], str]:
    """A function from a prompt to a line, with editing, and a history that outlives the session.

    The prompt is not model text, so it goes to stderr wherever that is a terminal.
    """
    stream = sys.stderr if terminal.is_terminal(sys.stderr) else sys.stdout
    if not terminal.takes_escapes(stream):
        return _plain_line
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.output import ColorDepth, create_output

    history: History
    path = home() / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        history = FileHistory(path)
    except OSError as problem:
        terminal.remark(f"(the history is not kept: {path}: {problem.strerror})")
        history = InMemoryHistory()
    session: PromptSession[str] = PromptSession(
        history=history,
        output=create_output(stdout=stream),
        color_depth=None if terminal.takes_colour(stream) else ColorDepth.DEPTH_1_BIT,
        completer=WordCompleter(sorted(COMMANDS), sentence=True),
        complete_while_typing=False,
    )
    return session.prompt


def _plain_line(prompt: str) -> str:
    """Read a line where nothing can be edited: a dumb terminal, or one that shows neither stream."""
    terminal.tell(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
