"""The `llm` command (also installed as `kukri`): its subcommands and the one error boundary for all."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ..quant.programs import leave_out_current_folder
from ..runtime.hub.errors import ModelNotFound, StoreError
from .app import COMMANDS, command_function, command_group
from .console import terminal
from .console.explain import explain
from .console.log import log_on_stderr
from .settings import model
from .settings.file import WITHOUT_SETTINGS, SettingsError, read_settings
from .signals import as_sent, unwinding

EXIT_FAILURE, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_CONTEXT, EXIT_DAMAGED, EXIT_INTERRUPTED = 1, 2, 3, 4, 5, 130

# typer may bring its own copy of click, so its classes are reached through what typer exports.
_UsageError = typer.BadParameter.__bases__[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; every error becomes one line on stderr."""
    leave_out_current_folder(os.environ)
    with unwinding(), log_on_stderr():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    terminal.setup_streams()
    words = [_utf8(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    end = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:end] or os.environ.get("LLM_DEBUG", "").lower() in ("1", "true", "yes", "on")
    words = [word for i, word in enumerate(words) if word != "--debug" or i >= end]
    code: int | str | None
    try:
        group = command_group(_the_only(words))
        _ignore_formats_of_others(group)
        code = group.main(words or ["--help"], prog_name=_program(), standalone_mode=False)
        if not words and terminal.is_terminal(sys.stdout):
            _suggest()
    except BaseException as raised:  # noqa: BLE001 - the boundary: all of them become exit codes
        problem = as_sent(raised)
        if isinstance(problem, SystemExit):
            code = problem.code
        elif isinstance(problem, KeyboardInterrupt | typer.Abort):
            code = EXIT_INTERRUPTED
        else:
            if debug:
                terminal.tell(traceback.format_exc().rstrip())
            terminal.error(_message(problem))
            code = exit_code(problem)
    return _close(code if isinstance(code, int) else EXIT_FAILURE if code else 0)


def _the_only(words: Sequence[str]) -> str | None:
    """The command that a command line is about, if no other one's flags matter to it.

    They do for the shell's completion, for settings and LLM_OUTPUT, which other commands may know, and for
    the commands that show and change settings.
    """
    name = words[0] if words else ""
    if name not in COMMANDS or name in WITHOUT_SETTINGS or "LLM_OUTPUT" in os.environ:
        return None
    completes = any(variable.endswith("_COMPLETE") for variable in os.environ)
    if completes:
        return None
    settings = read_settings()
    return name if not settings or (settings.keys() == {"model"} and name in ("run", "chat")) else None


def _suggest() -> None:
    """Below the help that `llm` alone shows: a model for this machine, unless one is the default already."""
    if model.from_environment() is None and "model" not in read_settings():
        better = model.suggested()
        if better is not None:
            terminal.remark(model.advice(better))


def _ignore_formats_of_others(group: Any) -> None:
    """Hide LLM_OUTPUT from the commands that cannot write the format, if some other command can.

    One variable serves all commands, and `md` for `bench` must not make `run` fail. A format that no
    command has is a usage error all the same.
    """
    value = os.environ.get("LLM_OUTPUT")
    if value is None:
        return
    defaults = {name: inspect.signature(command_function(name)).parameters.get("output") for name in COMMANDS}
    formats = {name: {str(f) for f in type(found.default)} for name, found in defaults.items() if found}
    if not any(value in known for known in formats.values()):
        return
    for name, known in formats.items():
        for parameter in group.commands[name].params:
            if parameter.name == "output" and value not in known:
                parameter.envvar = None


def _program() -> str:
    name = Path(sys.argv[0]).stem
    return name if name in ("llm", "kukri") else "llm"


def _utf8(word: str) -> str:
    """An argument's bytes read as UTF-8, whatever encoding the locale made Python assume."""
    return os.fsencode(word).decode("utf-8", "surrogateescape")


def exit_code(problem: BaseException) -> int:
    """The exit code an error ends the command with."""
    if isinstance(problem, (_UsageError, SettingsError)):
        return EXIT_USAGE
    if isinstance(problem, ModelNotFound):
        return EXIT_NOT_FOUND
    if isinstance(problem, (StoreError, OSError, MemoryError)):
        return EXIT_FAILURE
    from ..quant.errors import DamagedFile
    from ..runtime.engine.errors import ContextExceeded
    from ..tokenizer import TemplateError, TokenizerError

    if isinstance(problem, ContextExceeded):
        return EXIT_CONTEXT
    if isinstance(problem, TemplateError):  # a broken template, or one that refuses what it was given
        return EXIT_FAILURE if problem.raised else EXIT_DAMAGED
    return EXIT_DAMAGED if isinstance(problem, (DamagedFile, TokenizerError)) else EXIT_FAILURE


def _message(problem: BaseException) -> str:
    """What to print about an error."""
    if isinstance(problem, _UsageError):
        context = getattr(problem, "ctx", None)
        where = context.command_path if context else _program()
        return f"{problem.format_message()} ({where} --help shows what goes)"  # type: ignore[attr-defined]
    return explain(problem)


def _close(code: int) -> int:
    """Flush both streams; a failure of stdout is an error, unless there was one already."""
    problem = terminal.close_streams()
    if problem is None or code != 0:
        return code
    terminal.error(f"cannot write the output: {getattr(problem, 'strerror', None) or problem}")
    return EXIT_FAILURE


if __name__ == "__main__":
    sys.exit(main())
