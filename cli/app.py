"""The commands, and the group that typer makes of them.

Each is imported only where it is needed: most command lines name one, and importing all of them and making
their flags takes longer than the rest of a start.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from .. import __version__
from .console import terminal
from .console.help_text import fit_help
from .settings.file import WITHOUT_SETTINGS, read_settings, settings_path

COMMANDS = {  # name → its module in commands/ and the function there, in the order of the help
    "run": "run.run",
    "chat": "chat.chat",
    "batch": "batch.batch",
    "use": "models.use.use",
    "pull": "models.pull.pull",
    "list": "models.list.list_models",
    "show": "models.show.show",
    "rm": "models.rm.rm",
    "serve": "serve.serve",
    "ps": "ps.ps",
    "quantize": "models.quantize.quantize",
    "bench": "bench.bench",
    "eval": "eval.evaluate",
    "embed": "embed.embed",
    "rerank": "embed.rerank",
    "explain": "explain.explain",
    "tokenize": "tokenize.tokenize",
    "doctor": "doctor.doctor",
    "config": "config.config",
    "cache": "cache.cache",
}


def command_function(name: str) -> Callable[..., None]:
    """The function of a command, whose parameters are its arguments and flags."""
    module, function = COMMANDS[name].rsplit(".", 1)
    found: Callable[..., None] = getattr(
        importlib.import_module(f".commands.{module}", __package__), function
    )
    return found


def command_group(only: str | None = None) -> Any:
    """The click.Group of all commands, or of one of them."""
    app = typer.Typer(
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Every flag of a command can also be set in the environment, as LLM_<FLAG>: LLM_TOP_K=20, or "
        "in the settings file: llm config top-k 20.",
    )
    app.callback()(options)
    for name in [only] if only else COMMANDS:
        command = command_function(name)
        # The first sentence; without `short_help`, typer would cut it.
        first = (inspect.getdoc(command) or "").split("\n\n")[0]
        app.command(name, short_help=first)(command)
    # typer makes no group of a single command unless there is a callback, as there is
    group = typer.main.get_command(app)
    fit_help(group)
    return group


def _version(wanted: bool) -> None:
    if wanted:
        terminal.write(f"kukri {__version__}\n")
        raise typer.Exit


def options(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.", envvar="LLM_DEBUG")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run quantised language models on this machine."""
    if ctx.invoked_subcommand not in WITHOUT_SETTINGS and (settings := read_settings()):
        from .settings.flags import defaults, settable  # a start without settings does without

        commands = settable(ctx.command.commands, WITHOUT_SETTINGS)  # type: ignore[attr-defined]
        ctx.default_map = defaults(settings, commands, settings_path())
