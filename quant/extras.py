"""How an optional part of this package (an extra: cuda, plot) is installed."""

from __future__ import annotations

import json
import os
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from .package import PACKAGE, PACKAGE_FOLDER


def how_to_install(extra: str) -> str:
    """The command that adds `extra` to this very installation, wherever that came from.

    The package's name alone would let pip look for it in an index, which need not have it. So a checkout is
    named by its folder, and what was installed from a file, an address or a repository by that.
    """
    if (PACKAGE_FOLDER / "pyproject.toml").is_file():
        folder = "." if Path.cwd() == PACKAGE_FOLDER else str(PACKAGE_FOLDER)
        return f'pip install -e "{folder}[{extra}]"'
    try:
        origin = _origin(distribution(PACKAGE))
    except PackageNotFoundError:
        origin = None
    return f'pip install "{PACKAGE}[{extra}]{f" @ {origin}" if origin else ""}"'


def _origin(installed: Distribution) -> str | None:
    """The address that pip installed a distribution from (PEP 610); None for an index."""
    try:
        direct: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
        url = direct.get("url")
        if url and (repository := direct.get("vcs_info")):
            url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
        return os.fspath(url) if url else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
