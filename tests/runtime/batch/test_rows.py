"""Rows of all formats; what is damaged is named by number and stops no other."""

from __future__ import annotations

import io

import pytest

from kukri.runtime.batch import rows
from kukri.runtime.batch.rows import BatchError, format_of, read_rows


def read(raw: bytes, format: str = "jsonl") -> list[tuple[int, object]]:
    return [(row.number, row.error or row.fields) for row in read_rows(io.BytesIO(raw), format)]


def test_json_lines() -> None:
    raw = b'\xef\xbb\xbf{"prompt": "a"}\r\n\n"b"\n{"x": 1}'
    assert read(raw) == [(1, {"prompt": "a"}), (3, {"prompt": "b"}), (4, {"x": 1})]
    halves = rb'{"prompt": "\ud83d\ude00 \ud83d", "\uDC00": 1.5e3}'
    assert read(halves) == [(1, {"prompt": "\U0001f600 \ufffd", "\ufffd": 1500.0})]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": ', "is not valid JSON"),
        (b"[1]", "neither a JSON object"),
        (b'{"prompt": "x", "v": NaN}', "NaN is no number"),
        (b'{"prompt": "x", "v": [-1e999]}', "-1e999 is no number"),
        (b'"\xff"', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_line_does_not_stop_the_others(line: bytes, reason: str) -> None:
    first, bad, last = read(b'"a"\n' + line + b'\n"b"')
    assert (first, last) == ((1, {"prompt": "a"}), (3, {"prompt": "b"}))
    assert bad[0] == 2
    assert reason in str(bad[1])


def test_a_line_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_LINE", 16)
    found = read(b'"a"\n"' + b"x" * 100 + b'"\n"b"\n')
    assert [number for number, _ in found] == [1, 2, 3]
    assert "the line has over" in str(found[1][1])
    assert found[2][1] == {"prompt": "b"}


def test_csv() -> None:
    raw = 'name,text\r\nä,"two\nlines, ""quoted"""\r\n\r\nb,c\r\n'.encode()
    assert read(raw, "csv") == [
        (1, {"name": "ä", "text": 'two\nlines, "quoted"'}),
        (3, {"name": "b", "text": "c"}),
    ]


def test_damaged_csv() -> None:
    found = read(b"a,b\n1,2\n1\n\xff,2\n3,4\n", "csv")
    assert found[0][1] == {"a": "1", "b": "2"}
    assert "line 3 has 1 of 2 columns" in str(found[1][1])
    assert "line 4 is not UTF-8" in str(found[2][1])
    assert found[3] == (4, {"a": "3", "b": "4"})
    with pytest.raises(BatchError, match="names its columns"):
        read(b"a,a\n1,2\n", "csv")


def test_parquet() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"prompt": ["a", "b"], "n": [1, None]}), file)
    assert read(file.getvalue(), "parquet") == [(1, {"prompt": "a", "n": 1}), (2, {"prompt": "b", "n": None})]
    with pytest.raises(BatchError, match="no sound Parquet file"):
        read(b"PAR1 nothing", "parquet")


def test_formats() -> None:
    assert [format_of(name) for name in ("a.jsonl", "a.CSV", "-", "a.txt", "a.parquet")] == [
        *("jsonl", "csv", "jsonl", "jsonl", "parquet")
    ]
    with pytest.raises(BatchError, match=r"not \.xlsx"):
        format_of("a.xlsx")
