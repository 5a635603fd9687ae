"""Programs found through PATH: never in the current folder, where anybody may have put one of that name."""

from __future__ import annotations

import os
import shutil
from collections.abc import MutableMapping


def leave_out_current_folder(environment: MutableMapping[str, str]) -> None:
    """Make an environment one in which programs are not looked for in the current folder.

    Relative entries of PATH go, an empty one among them, which means the same as "."; Windows, which looks
    into the current folder first, is told not to.
    """
    entries = [entry for entry in environment.get("PATH", "").split(os.pathsep) if os.path.isabs(entry)]
    if entries:
        environment["PATH"] = os.pathsep.join(entries)
    else:  # an empty PATH would mean the current folder, none means `os.defpath`
        environment.pop("PATH", None)
    if os.name == "nt":
        environment["NoDefaultCurrentDirectoryInExePath"] = "1"


def find_program(name: str) -> str | None:
    """The path of a program on PATH; None if there is none, or only one in the current folder."""
    environment = dict(os.environ)
    leave_out_current_folder(environment)
    found = shutil.which(name, path=environment.get("PATH", os.defpath))
    return found if found is not None and os.path.isabs(found) else None
