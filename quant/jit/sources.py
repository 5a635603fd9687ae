"""Fingerprints of source code: machine code on disk is stale when a module that it was compiled from changes.

A kernel is compiled from its module and from all modules of this package that the module imports, directly or
through others. Following imports costs a parse of every module, which a warm start has no time for. So a
`SourceSet` lists files and whole folders, reading which is cheap, and `SourceSet.check` follows the imports
of a kernel before it is compiled: a module outside the set is an error at once, never stale code later.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..package import PACKAGE, PACKAGE_FOLDER

_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


class UntrackedSource(RuntimeError):
    """A kernel is compiled from a source file whose edits would not be noticed: a mistake in this package."""


@dataclass(frozen=True)
class SourceSet:
    """Files and folders, with all that is below them, relative to the package's folder: "quant/jit"."""

    name: str  # of the Python constant that lists them, for messages
    places: tuple[str, ...]

    def files(self) -> list[Path]:
        """All Python files. OSError if a file or folder is not there, or has no sources."""
        found: list[Path] = []
        for place in self.places:
            path = PACKAGE_FOLDER / place
            files = [path] if place.endswith(".py") else sorted(path.glob("**/*.py"))
            if not files or not files[0].is_file():
                raise FileNotFoundError(f"{path}: there are no sources that would tell stale machine code")
            found += files
        return found

    def digest(self) -> bytes:
        """SHA-256 of the content of all files. OSError as for `files`."""
        whole = hashlib.sha256()
        for path in self.files():
            content = path.read_bytes()
            whole.update(b"%d\n" % len(content))
            whole.update(content)
        return whole.digest()

    def check(self, module: str) -> None:
        """Raise UntrackedSource if `module` imports a module of this package that is not in the set.

        Modules outside this package, and those without sources, are not looked at. A cache of such kernels
        does not notice that they are stale.
        """
        reachable = reachable_sources(module)
        if outside := reachable and reachable - set(self.files()):
            names = ", ".join(str(path.relative_to(PACKAGE_FOLDER)) for path in sorted(outside))
            raise UntrackedSource(
                f"{module} imports {names}: add what is missing to {self.name}, or stale code would be run"
            )


@cache
def reachable_sources(module: str) -> frozenset[Path]:
    """The source files of `module` and of what it imports of this package, directly or through others.

    Imports inside functions count, those for type checkers do not. The `__init__.py` of a package counts
    where something is imported from it; one that Python merely runs on the way to a module does not. The
    package's own `__init__.py`, which imports the whole public API, does not count for its exceptions.
    """
    found: set[Path] = set()
    todo = [path] if (path := _source(module)) else []
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += _imported_sources(path)
    return frozenset(found)


def _source(module: str) -> Path | None:
    """The file of a module of this package; None for other names."""
    root, *names = module.split(".")
    if root != PACKAGE:
        return None
    if not names:
        return PACKAGE_FOLDER / "__init__.py"
    path = PACKAGE_FOLDER.joinpath(*names)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _imported_sources(path: Path) -> frozenset[Path]:
    """The source files of this package's modules that one file imports."""
    package = (PACKAGE, *path.relative_to(PACKAGE_FOLDER).parent.parts)
    modules: set[str] = set()
    for node in _import_statements(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = {f"{base}.{alias.name}" for alias in node.names}
            errors_only = all(_source(name) or name.endswith("Error") for name in names)
            modules |= names if base == PACKAGE and errors_only else {base, *names}
    return frozenset(file for module in modules if (file := _source(module)))


def _import_statements(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """All import statements of a module, except those below `if TYPE_CHECKING`."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            todo += node.orelse
        else:  # expressions contain no statements
            todo += [n for n in ast.iter_child_nodes(node) if isinstance(n, _STATEMENTS)]
