"""What the settings file may say: the flags of the commands, checked against their types.

The command line is click's, whose parameters are handed in; nothing here knows a single flag.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from .file import SettingsError, spelled

Flags = dict[str, Any]  # long name without dashes → click's parameter
_WHOLE, _REAL = ("int", "integer", "int range", "integer range"), ("float", "float range")
_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def settable(commands: Mapping[str, Any], without: Iterable[str] = ()) -> dict[str, Flags]:
    """The flags of each command that may stand in the settings file.

    Not those of the commands `without`, and not `-m` of commands whose argument names the model: a default
    model must not be what `llm rm` deletes.
    """
    found: dict[str, Flags] = {}
    for name, command in commands.items():
        if name in without:
            continue
        found[name] = {}
        has_argument = any(
            each.name == "model" and each.param_type_name == "argument" for each in command.params
        )
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                if (
                    option.startswith("--")
                    and option != "--help"
                    and not (has_argument and option == "--model")
                ):
                    found[name][option[2:]] = parameter
    return found


def defaults(
    settings: Mapping[str, Any], commands: Mapping[str, Flags], where: object
) -> dict[str, dict[str, Any]]:
    """click's `default_map` of the settings: command → parameter → value. A value in a command's table goes
    before one at the top.

    A value at the top is for every command that has the flag; a choice that only some of them have (the
    format of the output) leaves the others alone. Raises SettingsError, which names the file `where`.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in commands}
    for key, value in _unique(settings, where).items():
        if not isinstance(value, dict):
            for name, checked in top_level(key, value, commands, where).items():
                found[name][commands[name][key].name] = checked
    for name, table in settings.items():
        if not isinstance(table, dict):
            continue
        if name not in commands:
            raise SettingsError(f"{where}: [{name}] is no command{_near(name, commands)}")
        for key, value in _unique(table, where).items():
            flag = commands[name].get(key)
            if flag is None:
                raise SettingsError(
                    f"{where}: [{name}] {key}: llm {name} has no such flag{_near(key, commands[name])}"
                )
            found[name][flag.name] = checked_value(flag, value, f"{where}: [{name}] {key}")
    return found


def top_level(key: str, value: Any, commands: Mapping[str, Flags], where: object) -> dict[str, Any]:
    """The value of a key at the top for each command that it is for. Raises SettingsError."""
    having = {name: flags[key] for name, flags in commands.items() if key in flags}
    if not having:
        every = {flag for flags in commands.values() for flag in flags}
        raise SettingsError(f"{where}: {key} is no flag of any command{_near(key, every)}")
    found, problems = {}, []
    for name, flag in having.items():
        try:
            found[name] = checked_value(flag, value, f"{where}: {key}")
        except SettingsError as problem:
            if flag.type.name != "choice":
                raise
            problems.append(problem)
    if not found:
        raise problems[0]
    return found


def _unique(table: Mapping[str, Any], where: object) -> dict[str, Any]:
    """A table's values by keys with dashes. Raises SettingsError if a key is there in both spellings."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if not isinstance(value, dict) and spelled(key) in found:
            raise SettingsError(f"{where}: {spelled(key)} is there twice")
        found[spelled(key)] = value
    return found


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def checked_value(flag: Any, value: Any, where: str) -> Any:
    """The value as click takes it for a parameter. SettingsError, beginning with `where`, for a wrong one."""
    if flag.is_flag:
        if not isinstance(value, bool):
            raise SettingsError(f"{where} takes true or false, not {_shown(value)}")
        return value
    if flag.multiple:
        values = [_text_of(each, where) for each in (value if isinstance(value, list) else [value])]
        return _converted(flag, values, where)
    kind = flag.type.name
    if kind in _WHOLE:
        wanted, fits = "a whole number", type(value) is int
    elif kind in _REAL:
        wanted, fits = "a number", type(value) in (int, float)
    else:
        wanted, fits = "text in quotes", isinstance(value, str)
    if not fits:
        raise SettingsError(f"{where} takes {wanted}, not {_shown(value)}")
    return _converted(flag, value, where)


def _shown(value: Any) -> str:
    """A value as the file has it, for a message."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _text_of(value: Any, where: str) -> str:
    """An item of a list: text, or a number as its text."""
    if isinstance(value, str) or type(value) in (int, float):
        return str(value)
    raise SettingsError(f"{where} takes text or a list of texts, not {_shown(value)}")


def _converted(flag: Any, value: Any, where: str) -> Any:
    """The value, after click's own check of ranges and choices."""
    try:
        flag.type_cast_value(None, value)
    except Exception as problem:  # click's BadParameter, of one of two packages
        message = getattr(problem, "message", None)
        if message is None:
            raise
        raise SettingsError(f"{where}: {message}") from None
    return value


def from_words(flag: Any, words: list[str], where: str) -> Any:
    """The value that words of a command line mean for a flag, as the settings file holds it.

    Raises SettingsError if they are none, or too many.
    """
    if flag.multiple:
        return checked_value(flag, words if len(words) > 1 else words[0], where)
    if len(words) > 1:
        raise SettingsError(f"{where} takes one value, not {len(words)}; quote a text with blanks")
    word, kind = words[0], flag.type.name
    value: Any = word
    if flag.is_flag:
        value = _WORDS.get(word.lower(), word)
    elif kind in _WHOLE or kind in _REAL:
        with suppress(ValueError):
            value = int(word) if kind in _WHOLE else float(word)
    return checked_value(flag, value, where)
