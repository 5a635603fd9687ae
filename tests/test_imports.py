"""The house rules that no single module can see: imports point down, and nothing tells where it was built."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {  # part → the siblings it may import
    "cli": {"runtime", "quant", "tokenizer"},
    "runtime": {"quant"},
    "quant": set(),
    "tokenizer": set(),
}
SOURCES = sorted(path for part in ALLOWED for path in (ROOT / part).rglob("*.py"))


def imported_modules(path: Path, source: str) -> set[str]:
    """Modules of this package that a file imports anywhere, inside functions too: "runtime.engine.cache".

    Relative imports are resolved; "" stands for the package itself.
    """
    package = path.relative_to(ROOT).parent.parts
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                assert node.level <= len(package) + 1, f"{path}: a relative import leaves the package"
            elif node.module and node.module.split(".")[0] == "kukri":
                base = ()
            else:
                continue
            named = node.module.split(".") if node.module else []
            base = (*base, *(named if node.level else named[1:]))
            found |= {".".join(base)} if base else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {".".join(name[1:]) for name in names if name[0] == "kukri"}
    return found


def test_the_resolver_sees_all_kinds_of_imports():
    source = """
import numpy, kukri.cli.main as x
from .. import ops, __version__
from ...quant.block import QTensor
from . import team
from kukri.tokenizer import bpe
def f():
    from ...tokenizer.bpe import BPE
"""
    assert imported_modules(ROOT / "runtime/cpu/machine.py", source) == {
        "cli.main",
        "runtime",
        "quant.block",
        "runtime.cpu",
        "tokenizer",
        "tokenizer.bpe",
    }
    assert imported_modules(ROOT / "cli/main.py", "from .. import __version__, quant") == {
        "__version__",
        "quant",
    }


def test_there_is_something_to_check():
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == set(ALLOWED)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path):
    part = path.relative_to(ROOT).parts[0]
    modules = imported_modules(path, path.read_text("utf-8"))
    siblings = {module.split(".")[0] for module in modules} - {part}
    allowed = ALLOWED[part] | ({"__version__"} if part == "cli" else set())
    assert siblings <= allowed, f"{part} must not import {', '.join(sorted(siblings - allowed))}"


def test_nothing_mentions_the_machine_it_was_built_on():
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("git does not read this checkout")
    needles = {str(path).encode() for path in (ROOT, Path.home(), sys.base_prefix) if len(str(path)) > 4}
    guilty = []
    for name in listed.stdout.decode("utf-8").split("\0"):
        path = ROOT / name
        if name and path.is_file():
            text = path.read_bytes()
            guilty += [f"{name}: {needle.decode()}" for needle in needles if needle in text]
    assert not guilty
