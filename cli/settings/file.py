"""The settings file itself: where it is, reading it, and changing one value in it."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from ...quant.safe_files import NewFile
from ..console.bounded_io import TooLong, read_file

LONGEST = 1 << 20  # bytes
WITHOUT_SETTINGS = ("config", "use")  # commands without settings of their own


class SettingsError(ValueError):
    """The settings file cannot be used, and why: names the file, and the line or the key."""


def settings_path() -> Path | None:
    """The file that KUKRI_CONFIG names, else kukri/config.toml in XDG_CONFIG_HOME or ~/.config.

    It need not exist. None for a user without a home folder.
    """
    if given := os.environ.get("KUKRI_CONFIG"):
        try:
            return Path(given).expanduser()
        except RuntimeError:
            raise SettingsError(f"KUKRI_CONFIG is {given}, and there is no such user") from None
    config_home = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(config_home):  # the XDG specification has relative ones ignored
        return Path(config_home) / "kukri" / "config.toml"
    try:
        return Path.home() / ".config" / "kukri" / "config.toml"
    except RuntimeError:
        return None


def read_settings() -> dict[str, Any]:
    """What the settings file says, its tables as dicts; {} if there is none. Raises SettingsError."""
    path = settings_path()
    text = "" if path is None else _text(path)
    if not text.strip():
        return {}
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise SettingsError(f"{path}: {problem}") from None


def _text(path: Path) -> str:
    """The file's text, "" if there is no such file. Raises SettingsError."""
    try:
        return read_file(path, LONGEST).decode("utf-8-sig") if str(path) != os.devnull else ""
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as problem:
        raise SettingsError(f"{path}: {problem.strerror or problem}") from None
    except TooLong as problem:
        raise SettingsError(f"{path}: {problem}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is not UTF-8 text") from None


def spelled(key: str) -> str:
    """A key as flags are spelled: with dashes, `max-tokens` for `max_tokens`."""
    return key.replace("_", "-")


def change(table: str, key: str, value: Any | None) -> Path:
    """Set `key` in `table` ("": at the top) to `value`, or remove it if that is None; returns the file.

    Everything else in the file stays as it is, comments too. Raises SettingsError.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    path = settings_path()
    if path is None:
        raise SettingsError("there is no home folder for a settings file; KUKRI_CONFIG names another place")
    read_settings()  # the message about a broken file is the reader's
    document = tomlkit.parse(_text(path))
    try:
        _edit(document, table, key, value)
        text = tomlkit.dumps(document)
        text.encode()
    except UnicodeEncodeError:
        raise SettingsError(f"{key}: what is not UTF-8 text cannot stand in a settings file") from None
    except (TOMLKitError, ValueError) as problem:
        raise SettingsError(f"{path}: {problem}") from None
    _write(path, text)
    return path


def _edit(document: MutableMapping[str, Any], table: str, key: str, value: Any | None) -> None:
    if table and table not in document:
        if value is None:
            return
        document[table] = {}
    at = document[table] if table else document
    same = [each for each in at if spelled(each) == spelled(key)]
    for each in same[1:] if value is not None else same:
        del at[each]
    if value is not None:
        at[same[0] if same else key] = value
    elif table and not at:
        del document[table]


def _write(path: Path, text: str) -> None:
    """Replace the file at once, readable by its owner only; a link to it stays a link."""
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with NewFile(target, private=True) as file:
            file.write(text.encode())
    except OSError as problem:
        raise SettingsError(f"{path} cannot be written: {problem.strerror or problem}") from None
