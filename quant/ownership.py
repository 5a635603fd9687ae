"""Whether files can only have come from this user: before machine code on disk is run.

Trusted are this user, and root, who needs no trick to run code here. A folder is safe if it and all folders
above it belong to these two and nobody else can write to them. Folders above may also be open to everybody
with the sticky bit, as /tmp is, since there nobody can rename what belongs to another. The user's home is
the last folder that is looked at: whoever can replace that needs nothing of kukri's. On Windows, where each
user's folders are closed to other users by default, nothing is checked.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import NoHome

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder(base: Path, *parts: str) -> Path:
    """The folder `base/parts…` without links in its path; made if it is missing, for this user only (0700).

    Folders of this user below `base` that are open to others are closed. Raises NoHome if other users could
    put something into the folder or replace it, and OSError if it cannot be made.
    """
    base = Path(os.path.realpath(base))
    existing = next(folder for folder in (base, *base.parents) if folder.exists())
    _refuse(foreign_writer(existing, above=existing != base))
    for folder in reversed([base, *base.parents]):
        _make(folder)
    folder = base
    for part in parts:
        folder = folder / part
        _make(folder)
        _close(folder)
    folder = Path(os.path.realpath(folder))
    _refuse(foreign_writer(folder))
    return folder


def foreign_writer(folder: Path, above: bool = False) -> str | None:
    """Who else could change what lies in an existing folder, as a sentence; None if nobody could.

    `above`: the question is about a folder that this user will make in it, so that the sticky bit is enough.
    Raises OSError if a folder above cannot be looked at.
    """
    if not hasattr(os, "geteuid"):
        return None
    home = os.path.realpath(os.path.expanduser("~"))
    path = Path(os.path.realpath(folder))
    for each in (path, *path.parents):
        status = each.lstat()
        if not _is_trusted(status.st_uid):
            return f"{each} belongs to another user"
        sticky = status.st_mode & stat.S_ISVTX and (above or each != path)
        if status.st_mode & _OTHERS_WRITE and not sticky and not _is_private_group(status):
            return f"other users can write to {each}"
        if str(each) == home:
            break
    return None


def read_own_file(path: Path) -> bytes:
    """The content of a file that this user or root owns and nobody else can write to.

    Raises PermissionError for any other file and for a link, and OSError if it cannot be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is no ordinary file")
        if hasattr(os, "geteuid") and (not _is_trusted(status.st_uid) or status.st_mode & _OTHERS_WRITE):
            raise PermissionError(f"another user could have written {path}")
        return file.read()


def _is_trusted(user: int) -> bool:
    return user in (0, os.geteuid())


def _is_private_group(status: os.stat_result) -> bool:
    """Whether only the group may write, and it is the group that many systems make for each single user.

    It has the user's name and no other member. Where the usual umask is 002, home folders are open to it.
    """
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(status.st_gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    is_own = group.gr_name == user.pw_name and group.gr_gid == user.pw_gid
    return is_own and not status.st_mode & stat.S_IWOTH and set(group.gr_mem) <= {user.pw_name}


def _make(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(mode=0o700, exist_ok=True)


def _close(folder: Path) -> None:
    """Let only this user into a folder of his; a link is left to what it leads to."""
    if hasattr(os, "geteuid"):
        status = folder.lstat()
        is_own = status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode)
        if is_own and status.st_mode & 0o077:
            folder.chmod(0o700)


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise NoHome(reason)
