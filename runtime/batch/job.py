"""The files of a batch: opened so that a run that was cut off goes on, and nothing is overwritten unasked."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...quant.safe_files import NewFile
from ...untrusted import open_file
from .journal import Journal, RowSet
from .lines import Lines, check_columns
from .output import Output
from .rows import BatchError, Row, format_of, parquet_module, read_rows

STDIO = "-"
_SAMPLE = 1 << 16  # bytes of the input that its digest is of
_PARQUET_GROUP = 4096  # rows


@dataclass
class Job:
    """The open files of a batch. `n_bytes`: of the input, None for a pipe; `resumed`: rows done before."""

    rows: Iterator[Row]
    lines: Lines
    output: Output
    input: BinaryIO
    n_bytes: int | None
    journal: Journal | None
    errors: Path | None = None
    parquet: Path | None = None

    @property
    def known(self) -> RowSet:
        """The rows that earlier runs have done."""
        return self.journal.done if self.journal else RowSet()

    def position(self) -> int:
        """Bytes of the input that are read."""
        return self.input.tell()

    def complete(self) -> None:
        """All rows are written: make a Parquet file of them if it is wanted, and remove the journal."""
        self.output.sync()
        self.output.close()
        if self.parquet is not None:
            _to_parquet(_rows_path(self.parquet), self.parquet)
        if self.journal is not None:
            self.journal.remove()
        if self.parquet is not None:
            _rows_path(self.parquet).unlink(missing_ok=True)

    def leave(self) -> None:
        """Close the files as they are; what is written and in the journal is not done again. That a full disk
        does not take the rest is no news: it is why the job is left."""
        with suppress(OSError):
            self.output.close()
        if self.journal is not None:
            with suppress(OSError):
                self.journal.close()


def errors_path(output: Path) -> Path:
    """Where the rows that failed are."""
    return output.with_name(f"{output.stem}.errors.jsonl")


def journal_path(output: Path) -> Path:
    """Where the journal of an unfinished run is."""
    return output.with_name(f"{output.name}.journal")


def _rows_path(output: Path) -> Path:
    """Where rows wait until there are all that a Parquet file gets."""
    return output.with_name(f"{output.name}.rows.jsonl")


def open_job(
    source: str, destination: str, settings: Mapping[str, Any], answer: str = "answer", force: bool = False
) -> Job:
    """Open input and output of a batch ("-": stdin and stdout).

    `settings` is what decides the answers: a run goes on only with the same. An output that is complete stays
    as it is unless `force`, which begins anew. Raises BatchError and OSError.
    """
    form = format_of(destination)
    file, n_bytes = open_input(source)
    rows = read_rows(file, format_of(source))
    first = next(rows, None)
    rows = itertools.chain([first] if first else [], rows)
    if first is not None and "custom_id" not in first.fields:
        check_columns(first.fields, answer)
    columns = tuple(first.fields) if form == "csv" and first is not None else None
    lines = Lines(answer, columns)
    if destination == STDIO:
        output = Output(sys.stdout.buffer, None, None)
        job = Job(rows, lines, output, file, n_bytes, None)
    else:
        path = Path(destination)
        if path.is_dir():
            raise BatchError(f"{destination} is a folder: name a file for the answers")
        if source != STDIO and path.exists() and os.path.samefile(source, path):
            raise BatchError(f"{path.name} would be overwritten by its own answers: name another output")
        state = {"input": _digest(source, file, n_bytes), "columns": list(columns or ())}
        state |= {key: json.loads(json.dumps(value, default=str)) for key, value in settings.items()}
        journal = _journal(path, state, force, can_resume=source != STDIO)
        work = _rows_path(path) if form == "parquet" else path
        if form == "parquet":
            parquet_module()
        opened = work.open("r+b") if work.exists() else work.open("w+b")
        output = Output(opened, errors_path(path), journal)
        job = Job(rows, lines, output, file, n_bytes, journal, errors_path(path))
        job.parquet = path if form == "parquet" else None
    if output.is_empty and (head := lines.head()):
        output.head(head)
    return job


def open_input(source: str) -> tuple[BinaryIO, int | None]:
    """The input, and its size in bytes if it is a file. Raises BatchError and OSError."""
    if source == STDIO:
        return sys.stdin.buffer, None
    file = open_file(Path(source), BatchError)
    return file, os.fstat(file.fileno()).st_size


def _digest(source: str, file: BinaryIO, n_bytes: int | None) -> str:
    """What tells one input from another: its size and how it begins. Reading all of it may take minutes."""
    if source == STDIO:
        return STDIO
    with open_file(Path(source), BatchError) as again:
        return f"{n_bytes} {hashlib.sha256(again.read(_SAMPLE)).hexdigest()}"


def _journal(path: Path, state: dict[str, Any], force: bool, can_resume: bool) -> Journal:
    where = journal_path(path)
    if where.exists() and not force:
        if not can_resume:
            raise BatchError(
                f"{path.name} is of an unfinished run, and stdin cannot go on; --force begins anew"
            )
        return Journal.resume(where, state)
    if path.exists() and not force and path.stat().st_size:
        raise BatchError(f"{path.name} is there already; --force replaces it")
    for old in (errors_path(path), _rows_path(path), path):
        if old.is_file():
            old.unlink()
    return Journal.create(where, state)


def _to_parquet(rows: Path, path: Path) -> None:
    """A Parquet file of a file of JSON lines. Columns are those of all rows; what is nested stays so."""
    import pyarrow
    import pyarrow.json

    parquet = parquet_module()
    try:
        table = pyarrow.json.read_json(rows) if rows.stat().st_size else pyarrow.table({})
    except (OSError, ValueError) as problem:
        raise BatchError(
            f"the rows fit no Parquet file ({str(problem).splitlines()[0]:.200}); they are in {rows.name}"
        ) from None
    with NewFile(path) as file:
        parquet.write_table(table, file, row_group_size=_PARQUET_GROUP)
