"""The name of this package, and the folder of its sources."""

from __future__ import annotations

from pathlib import Path

PACKAGE = __name__.partition(".")[0]
PACKAGE_FOLDER = Path(__file__).parents[1]
