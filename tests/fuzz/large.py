"""Large files made to cost as much as they can: as many bytes, values or nesting as are read, or just over.

Each case writes one into an empty folder and returns the path that is opened. What they may cost is in
tests/test_large_files.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kukri.untrusted import Limits

Case = Callable[[Path], Path]
Cases = dict[str, Case]

UNITS = {  # elements of a JSON list
    "empty-lists": b"[],",
    "empty-objects": b"{},",
    "lists": b'["ab","cd"],',
    "objects": b'{"a":0},',
    "texts": b'"abc",',
    "numbers": b"1.5,",
    "long-numbers": b"9" * 4000 + b",",
    "nested-lists": b"[[[[[[[[]]]]]]]],",
}


def registrar(cases: Cases) -> Callable[[Case], Case]:
    """A decorator that puts a case into `cases` by its name."""

    def case(make: Case) -> Case:
        cases[make.__name__.replace("_", "-")] = make
        return make

    return case


def json_list(unit: bytes, n_bytes: int, n_marks: int | None = None) -> bytes:
    """A JSON list of `unit`, as often as a file of so many bytes and marks (see Limits) can have it."""
    each = 2 * unit.count(b"[") + 2 * unit.count(b"{") + unit.count(b",") + unit.count(b":")
    n = (n_bytes - 64) // len(unit)
    return b"[" + unit * (n if n_marks is None else min(n, (n_marks - 64) // each)) + b"0]"


def json_object(value: bytes, key: str = "k") -> bytes:
    return b'{"' + key.encode() + b'": ' + value + b"}"


def json_cases(name: str, limits: Limits, place: Callable[[Path, bytes], Path]) -> Cases:
    """Objects with one list: too long a one, and the longest that are parsed; `place` writes the file."""

    def make(unit: bytes, n_marks: int | None) -> Case:
        return lambda folder: place(folder, json_object(json_list(unit, limits.n_bytes, n_marks)))

    cases = {f"{name}-{kind}": make(unit, limits.n_marks) for kind, unit in UNITS.items()}
    return {f"{name}-too-many-lists": make(b"[],", None)} | cases
