"""Files of scripts/ as modules, for tests of what they do."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def load_script(name: str) -> Any:
    """The module of a file such as "cuda_bench/models.py", run anew at each call."""
    path = SCRIPTS / name
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
