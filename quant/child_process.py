"""Child processes that run a function of this package in a fresh Python interpreter.

A child imports nothing from the current folder: whoever can put a `json.py` or `numpy.py` into the folder in
which a command is run must not get it executed. Hence

- the interpreter is started with `-P` and without PYTHONPATH, so that its own `sys.path` holds the standard
  library and site-packages only (those of the user too, without `-s`: kukri may be installed there);
- other variables that tell Python where to look for code are kept only if they are absolute, and so are the
  entries of PATH;
- its current folder is this package's, so that no settings are read where the command was run, as Numba's are
  from `.numba_config.yaml`;
- it takes over this process's `sys.path`, except relative entries and the current folder;
- it loads this package from the folder that this process has it from, whether or not that is on `sys.path`:
  a child of a checkout runs the checkout, even if another version is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .package import PACKAGE, PACKAGE_FOLDER
from .programs import leave_out_current_folder

# Environment variables that a child does not get: where to import from, and what to run behind `-c`.
_DROPPED = ("PYTHONPATH", "PYTHONINSPECT", "PYTHONSTARTUP")
# Those that name folders which Python imports from, and that a child gets only if these are absolute.
_PLACES = ("PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX")
# Runs in the child, where nothing of this package is importable yet. sys.argv[1] is made by `python_command`.
_BOOTSTRAP = """
import importlib, importlib.util, json, os, runpy, sys
request = json.loads(sys.argv[1])
if request["background"] and hasattr(os, "nice"):
    os.nice(19)
own = set(sys.path)
sys.path[:] = [entry for entry, safe in request["path"] if safe or entry in own]
package, folder = request["package"]
spec = importlib.util.spec_from_file_location(
    package, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
)
sys.modules[package] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[package])
module, _, function = request["entry"].partition(":")
if function:
    getattr(importlib.import_module(module), function)(sys.argv[2:])
else:
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def python_command(entry: str, background: bool = False) -> list[str] | None:
    """The command that runs `entry` in a fresh interpreter, to be followed by arguments; see `start_python`.

    It must be run with `child_environment`. None where `sys.executable` is not a Python interpreter: that of
    a frozen or embedding application is the application itself.
    """
    program = Path(sys.executable or "")
    if getattr(sys, "frozen", False) or not program.stem.lower().startswith(("python", "pypy")):
        return None
    request = {
        "entry": entry,
        "background": background,
        "path": [(folder, _is_safe(folder)) for folder in sys.path if isinstance(folder, str)],
        "package": (PACKAGE, str(PACKAGE_FOLDER)),
    }
    return [str(program), "-P", "-c", _BOOTSTRAP, json.dumps(request)]


def child_environment() -> dict[str, str]:
    """The environment for a `python_command`: this process's, without what leads into the current folder.

    KUKRI_HOME names the same folder wherever the child is.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.upper() not in _DROPPED
        and (name.upper() not in _PLACES or all(map(os.path.isabs, value.split(os.pathsep))))
    }
    if (home := environment.get("KUKRI_HOME")) and not home.startswith("~"):
        environment["KUKRI_HOME"] = os.path.abspath(home)
    leave_out_current_folder(environment)
    return environment


def start_python(
    entry: str,
    arguments: Sequence[str],
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    background: bool = False,
) -> subprocess.Popen[bytes] | None:
    """Start a Python process that runs `entry`; None if there is no interpreter or it cannot be started.

    `entry` is "module:function", which is called with the list of `arguments`, or "module", which is run as
    by `python -m` with `arguments` as its command line. Its stderr is discarded. `background`: the process
    has the lowest priority, and a session of its own, so that signals of the terminal do not reach it.
    Paths among the `arguments` must be absolute.
    """
    command = python_command(entry, background)
    if command is None:
        return None
    flags = getattr(subprocess, "CREATE_NO_WINDOW", 0)
    if background:
        flags |= getattr(subprocess, "IDLE_PRIORITY_CLASS", 0)
    try:
        return subprocess.Popen(  # noqa: S603 - this interpreter, without a shell; see above
            [*command, *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            cwd=PACKAGE_FOLDER,
            creationflags=flags,
            start_new_session=background and os.name != "nt",
        )
    except (OSError, ValueError):  # ValueError: a null character in an argument
        return None


def _is_safe(folder: str) -> bool:
    """Whether a child may import from an entry of `sys.path` that is not in its own.

    It may not if the entry is the current folder, or depends on what that is. Site-packages are in the
    child's own `sys.path`, so that they count even where somebody works in them.
    """
    if not os.path.isabs(folder):
        return False
    try:
        return not os.path.samefile(folder, os.curdir)
    except OSError:  # there is no such folder, or no current one
        return True
