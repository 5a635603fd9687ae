"""Writing the answers of a batch: appended as they come, synced in groups, noted in the journal."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from ...quant.safe_files import about_file
from .journal import Journal

GROUP_ROWS, GROUP_SECONDS = 64, 1.0  # at most between two syncs


def line_of(fields: dict[str, Any]) -> bytes:
    """Fields as a line of JSON."""
    return json.dumps(fields, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


def record_of(values: Sequence[Any]) -> bytes:
    """Values as a record of CSV; what is no text is written as JSON."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for value in values
    )
    return text.getvalue().encode("utf-8", "replace")


class Output:
    """The output of a batch and the file of its errors, which is made with the first of them.

    Without `errors_path` the output is stdout, which gets both. With a journal both are cut to what it calls
    sound, and go on from there. `push` may keep lines in memory
    for a group; `sync` has them on the disk.
    """

    def __init__(self, output: BinaryIO, errors_path: Path | None, journal: Journal | None) -> None:
        self._output = output
        self._errors_path = errors_path
        self._errors: BinaryIO | None = None
        self._journal = journal
        self._group: list[tuple[int, int, int]] = []
        self._synced = time.monotonic()
        self._ends = journal.ends if journal else (0, 0)
        if journal:
            output.truncate(self._ends[0])
            output.seek(self._ends[0])
            if errors_path is not None and errors_path.exists():
                self._errors = errors_path.open("r+b")
                self._errors.truncate(self._ends[1])
                self._errors.seek(self._ends[1])

    def _about_output(self) -> AbstractContextManager[None]:
        """A context whose OSErrors name the output, if it is a file."""
        return nullcontext() if self._errors_path is None else about_file(Path(self._output.name))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written to the output, so that its head is missing."""
        return self._ends[0] == 0

    def head(self, line: bytes) -> None:
        """Write what stands in front of all rows."""
        self._output.write(line)
        self._ends = (self._ends[0] + len(line), self._ends[1])

    def push(self, row: int, line: bytes, failed: bool) -> None:
        """Append the line of a row, to the errors if it `failed`. Without a file for errors it goes to the
        output. Raises OSError."""
        output, errors = self._ends
        if failed and self._errors_path is not None:
            if self._errors is None:
                self._errors = self._errors_path.open("wb")
            with about_file(self._errors_path):
                self._errors.write(line)
            errors += len(line)
        else:
            with self._about_output():
                self._output.write(line)
            output += len(line)
        self._ends = (output, errors)
        self._group.append((row, output, errors))
        if len(self._group) >= GROUP_ROWS or time.monotonic() - self._synced > GROUP_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Have all rows so far on the disk, and in the journal. Raises OSError."""
        with self._about_output():
            self._output.flush()
        if self._journal is not None and self._group:
            with self._about_output():
                os.fsync(self._output.fileno())
            if self._errors is not None and self._errors_path is not None:
                with about_file(self._errors_path):
                    self._errors.flush()
                    os.fsync(self._errors.fileno())
            with about_file(self._journal.path):
                self._journal.add(self._group)
        elif self._errors is not None:
            self._errors.flush()
        self._group.clear()
        self._synced = time.monotonic()

    def close(self) -> None:
        """Close both files; stdout is only flushed. What was not synced is done again by the run that resumes
        this one."""
        if self._errors is not None:
            self._errors.close()
        if self._errors_path is None:
            self._output.flush()
        else:
            self._output.close()
