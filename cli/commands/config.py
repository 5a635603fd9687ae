"""`llm config`: show and change the settings file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import terminal
from ..console.safe_text import as_json, lines, one_line
from ..settings.file import (
    WITHOUT_SETTINGS,
    SettingsError,
    change,
    read_settings,
    settings_path,
    spelled,
)

if TYPE_CHECKING:
    from ..settings.flags import Flags


def config(
    ctx: typer.Context,
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="A flag without its dashes, for all commands that have it, or COMMAND.FLAG for one of them.",
            show_default=False,
        ),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VALUE", help="Several for flags that may be given several times.", show_default=False
        ),
    ] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Remove KEY from the file.")] = False,
    path: Annotated[bool, typer.Option("--path", help="Show where the file is, or would be.")] = False,
) -> None:
    """Show and set the settings file.

    Without KEY: all settings. With KEY: its value. With KEY and VALUE: set it. A flag goes before LLM_<FLAG>,
    that before a setting of the command, and that before one of all commands.
    """
    if path and (key is not None or unset):
        raise typer.BadParameter("--path goes alone")
    if unset and (key is None or value):
        raise typer.BadParameter("--unset takes KEY alone")
    if path:
        terminal.write(one_line(str(settings_path() or _no_place())) + "\n")
    elif key is None:
        _show_all()
    elif unset:
        _remove(*_place(key))
    elif value:
        from ..settings.flags import settable

        commands = settable(_group(ctx).commands, WITHOUT_SETTINGS)
        table, name = _place(key)
        change(table, name, _checked(commands, table, name, value))
    else:
        _show(key)


def _no_place() -> str:
    raise SettingsError("there is no home folder for a settings file; KUKRI_CONFIG names another place")


def _group(ctx: typer.Context) -> Any:
    """The command above, which has all commands."""
    assert ctx.parent is not None
    return ctx.parent.command


def _place(key: str) -> tuple[str, str]:
    """The table ("": at the top) and the flag of a KEY."""
    table, _, flag = key.rpartition(".")
    return table, spelled(flag)


def _checked(commands: Mapping[str, Flags], table: str, key: str, words: list[str]) -> Any:
    """The value that the file gets. SettingsError for a key or a value that cannot be."""
    from ..settings.flags import from_words, top_level

    if table:
        if table not in commands:
            raise SettingsError(f"{table} is no command that has settings")
        flag = commands[table].get(key)
        if flag is None:
            raise SettingsError(f"llm {table} has no flag --{key}")
        return from_words(flag, words, f"{table}.{key}")
    having = [flags[key] for flags in commands.values() if key in flags]
    if not having:
        top_level(key, "", commands, "llm config")  # which says what is near
    problem: SettingsError | None = None
    for flag in having:  # of different types only where one takes lists
        try:
            found = from_words(flag, words, key)
            top_level(key, found, commands, "llm config")
        except SettingsError as wrong:
            problem = problem or wrong
        else:
            return found
    assert problem is not None
    raise problem


def _show_all() -> None:
    settings = read_settings()
    for key, value in _lines(settings):
        terminal.write(f"{one_line(key)} = {as_json(value)}\n")
    terminal.remark(f"{settings_path() or _no_place()}" + ("" if settings else ": no settings yet"))


def _lines(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys as `llm config` takes them, and their values."""
    for key, value in settings.items():
        if isinstance(value, dict):
            for name, each in value.items():
                yield f"{key}.{spelled(name)}", each
        else:
            yield spelled(key), value


def _show(key: str) -> None:
    table, name = _place(key)
    shown = f"{table}.{name}" if table else name
    for each, value in _lines(read_settings()):
        if each == shown:
            for item in value if isinstance(value, list) else [value]:
                terminal.write(f"{lines(item) if isinstance(item, str) else as_json(item)}\n")
            return
    terminal.note(f"{shown} is not set")
    raise typer.Exit(1)


def _remove(table: str, name: str) -> None:
    shown = f"{table}.{name}" if table else name
    if shown not in dict(_lines(read_settings())):
        terminal.note(f"{shown} is not set")
        raise typer.Exit(1)
    change(table, name, None)
