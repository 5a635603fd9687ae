"""Reading the rows of a batch: JSONL, CSV or Parquet, one at a time, whatever the file's size.

A row that cannot be read is a Row with an `error`, which does not stop the others. Rows count from 1.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ... import KukriError
from ...quant.extras import how_to_install
from ...untrusted import check_marks

FORMATS = ("jsonl", "csv", "parquet")
MAX_LINE = 64 << 20  # bytes of a line of JSON, or of a CSV record
MAX_MARKS = 8 << 20  # brackets, commas and colons in a line, see untrusted.Limits
PARQUET_ROWS = 1024  # read at a time


class BatchError(KukriError):
    """A batch cannot begin or go on, and why."""


class BadRow(KukriError):
    """A row is no request, and why."""


@dataclass(frozen=True)
class Row:
    """A row of the input: its `number`, and its `fields` by column, or the `error` in their place."""

    number: int
    fields: dict[str, Any]
    error: str | None = None


class Source(Protocol):
    """Bytes that can be counted: a binary file."""

    def readline(self, most: int, /) -> bytes: ...


def format_of(name: str | Path) -> str:
    """The format that a file's name states; JSON lines for "-" and whatever is not known. BatchError for
    one that is known to be something else."""
    suffix = Path(name).suffix.lower()
    if suffix in (".csv", ".parquet"):
        return suffix[1:]
    if suffix in (".tsv", ".xlsx", ".json", ".zip", ".gz", ".zst"):
        raise BatchError(f"{Path(name).name}: a batch is JSON lines (.jsonl), .csv or .parquet, not {suffix}")
    return "jsonl"


def read_rows(file: BinaryIO, format: str) -> Iterator[Row]:
    """The rows of a file that is open for reading. BatchError for one that is damaged as a whole."""
    if format == "jsonl":
        return _json_rows(file)
    return _csv_rows(file) if format == "csv" else _parquet_rows(file)


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """The lines of a file without their ends; None for one that is too long."""
    while line := file.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            while (more := file.readline(MAX_LINE)) and not more.endswith(b"\n"):
                pass
            yield None
        else:
            yield line.rstrip(b"\r\n")


def _json_rows(file: BinaryIO) -> Iterator[Row]:
    for number, line in enumerate(_lines(file), 1):
        if line is not None and number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line is None:
            yield Row(number, {}, f"the line has over {MAX_LINE >> 20} MiB")
        elif line.strip():  # blank lines are no rows, but count
            yield _json_row(number, line)


def _json_row(number: int, line: bytes) -> Row:
    try:
        check_marks(line, "the line", MAX_MARKS, BadRow)
        value = _value_of(line.decode())
    except BadRow as problem:
        return Row(number, {}, str(problem))
    except UnicodeDecodeError as problem:
        return Row(number, {}, f"is not UTF-8 text (byte {problem.start + 1} of the line)")
    except RecursionError:
        return Row(number, {}, "is nested too deeply")
    except ValueError as problem:
        return Row(number, {}, f"is not valid JSON: {str(problem).splitlines()[0]:.200}")
    if isinstance(value, str):
        return Row(number, {"prompt": value})
    if not isinstance(value, dict):
        return Row(number, {}, "is neither a JSON object nor a text")
    return Row(number, value)


def _value_of(text: str) -> Any:
    """The value of a JSON text, which can be written as JSON again: without Python's NaN and Infinity, and
    with U+FFFD for halves of surrogate pairs. ValueError for what is none."""
    value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    if "\\ud" in text or "\\uD" in text:
        whole = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
        return json.loads(whole.decode("utf-16", "replace"))
    return value


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _no_number(number)


def _csv_rows(file: BinaryIO) -> Iterator[Row]:
    """Records of CSV as RFC 4180 has it; the first one names the columns."""
    text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
    csv.field_size_limit(MAX_LINE)
    records = csv.reader(text, strict=True)
    try:
        columns = next(records, [])
    except csv.Error as problem:
        raise BatchError(f"the columns cannot be read: {problem}") from None
    if len(set(columns)) < len(columns) or not all(columns):
        raise BatchError("the first line of a CSV file names its columns, each by a name of its own")
    number = 0
    while True:
        number += 1
        try:
            record = next(records, None)
        except csv.Error as problem:
            yield Row(number, {}, f"line {records.line_num} is no CSV: {problem}")
            continue
        if record is None:
            return
        if len(record) != len(columns):
            if record:  # an empty line is no record
                yield Row(number, {}, f"line {records.line_num} has {len(record)} of {len(columns)} columns")
            continue
        try:
            "".join(record).encode()
        except UnicodeEncodeError:
            yield Row(number, {}, f"line {records.line_num} is not UTF-8 text")
            continue
        yield Row(number, dict(zip(columns, record, strict=True)))


def _parquet_rows(file: BinaryIO) -> Iterator[Row]:
    parquet = parquet_module()
    try:
        batches: Iterable[Any] = parquet.ParquetFile(file).iter_batches(PARQUET_ROWS)
        number = 0
        for batch in batches:
            for fields in batch.to_pylist():
                number += 1
                yield Row(number, fields)
    except (OSError, ValueError) as problem:  # ArrowInvalid is a ValueError
        raise BatchError(f"is no sound Parquet file: {str(problem).splitlines()[0]:.200}") from None


def parquet_module() -> Any:
    """pyarrow.parquet. BatchError if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise BatchError(f"Parquet files need pyarrow: {how_to_install('parquet')}") from None
    return pyarrow.parquet
