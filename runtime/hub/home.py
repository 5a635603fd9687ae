"""kukri's own folder, for models out of Python packages and for what the command line keeps."""

from __future__ import annotations

import logging
import os
import tempfile
from functools import cache
from pathlib import Path

from .errors import StoreError


def home() -> Path:
    """KUKRI_HOME, or else `kukri` in the user's cache folder, or else a private folder for temporary files.

    The folder need not exist. Raises StoreError if KUKRI_HOME names a user that does not exist, or if the
    private folder is open to other users.
    """
    if given := os.environ.get("KUKRI_HOME"):
        try:
            return Path(given).expanduser()
        except RuntimeError:
            raise StoreError(f"KUKRI_HOME is {given}, and there is no such user") from None
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache_home):  # the XDG specification says to ignore relative paths
        return Path(cache_home) / "kukri"
    try:
        return Path.home() / ".cache" / "kukri"
    except RuntimeError:  # a user id without a name, and no HOME
        return _private_folder()


@cache
def _private_folder() -> Path:
    """A folder for a user without a home, which later processes use again if nobody else can write to it."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"kukri-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if hasattr(os, "getuid") and (status.st_uid != user or status.st_mode & 0o22):
        raise StoreError(f"there is no home folder, and {folder} is open to others; set KUKRI_HOME")
    logging.getLogger(__name__).info(
        "there is no home folder; kukri's files go to %s, or to where KUKRI_HOME says", folder
    )
    return folder
