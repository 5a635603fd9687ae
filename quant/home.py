"""kukri's own folder: where compiled kernels and downloaded models of one user are kept."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from .errors import NoHome
from .ownership import foreign_writer


def home() -> Path:
    """The folder, which need not exist yet. Raises NoHome where there can be none.

    It is KUKRI_HOME, else `kukri` in XDG_CACHE_HOME, else `~/.cache/kukri`; for a user without a home folder
    (a user id without a name, as in containers), one in the folder for temporary files.
    """
    if given := os.environ.get("KUKRI_HOME"):
        try:
            return Path(given).expanduser()
        except RuntimeError:
            raise NoHome(f"KUKRI_HOME is {given}, and there is no such user") from None
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache_home):  # the XDG specification has relative ones ignored
        return Path(cache_home) / "kukri"
    try:
        return Path.home() / ".cache" / "kukri"
    except RuntimeError:
        return _temporary_home()


@cache
def _temporary_home() -> Path:
    """A folder that stays between commands, if it belongs to this user and nobody else can write to it.

    Anybody may have made a folder of that name before; what is loaded from it is executed.
    """
    import logging

    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"kukri-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    is_open = os.name != "nt" and folder.lstat().st_mode & 0o22
    if folder.is_symlink() or is_open or foreign_writer(folder):
        raise NoHome(f"there is no home folder, and {folder} is open to others; set KUKRI_HOME")
    log = logging.getLogger(__name__)
    log.addHandler(logging.NullHandler())  # else Python prints what a program without handlers logs
    log.warning("there is no home folder; kukri's files go to %s, or to where KUKRI_HOME says", folder)
    return folder
