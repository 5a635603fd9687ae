"""Runs that are cut off anywhere, and go on: every row once. The model is a function here."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from kukri.runtime.batch import output as output_module
from kukri.runtime.batch.ahead import RowsAhead
from kukri.runtime.batch.job import Job, errors_path, journal_path, open_job
from kukri.runtime.batch.journal import RECORD, Journal, RowSet
from kukri.runtime.batch.lines import Outcome
from kukri.runtime.batch.requests import Asking, Request
from kukri.runtime.batch.rows import BatchError
from kukri.runtime.batch.runner import Batch


class Killed(BaseException):
    """What a kill is here: nothing runs behind it."""


class Model:
    """Answers a prompt with itself in capitals; `fails` says which prompts fail, and how often."""

    def __init__(
        self, fails: dict[str, tuple[int, int]] | None = None, dies_after: int | None = None
    ) -> None:
        self.fails = fails or {}
        self.asked: list[str] = []
        self.dies_after = dies_after
        self.running = self.most_running = 0

    async def __call__(self, request: Request) -> Outcome:
        text = request.body["messages"][-1]["content"]
        self.asked.append(text)
        if self.dies_after is not None and len(self.asked) > self.dies_after:
            raise Killed
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        await asyncio.sleep(random.random() * 1e-3)
        self.running -= 1
        status, n = self.fails.get(text, (200, 0))
        if n > 0:
            self.fails[text] = (status, n - 1)
            return Outcome(request, status, {"error": {"message": f"no {text}"}})
        message = {"role": "assistant", "content": text.upper()}
        choices = [{"message": message, "finish_reason": "stop"}]
        return Outcome(request, 200, {"choices": choices, "usage": {"completion_tokens": 2}})


def run(job: Job, model: Model, **more: Any) -> Batch:
    batch = Batch(RowsAhead(job.rows), Asking(), model, job.lines, job.output, width=8)
    batch.known = job.known
    for name, value in more.items():
        setattr(batch, name, value)
    asyncio.run(batch.run())
    return batch


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"row {i}", "i": i}) + "\n" for i in range(300)))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_all_rows(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    model = Model()
    job = open_job(str(source), str(out), {})
    batch = run(job, model)
    assert journal_path(out).exists()
    job.complete()
    rows = read(out)
    assert sorted(row["i"] for row in rows) == list(range(300))
    assert all(row["answer"] == row["prompt"].upper() and row["finish_reason"] == "stop" for row in rows)
    assert (batch.progress.done, batch.progress.failed, batch.progress.tokens) == (300, 0, 600)
    assert model.most_running == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    with pytest.raises(BatchError, match="is there already"):
        open_job(str(source), str(out), {})
    open_job(str(source), str(out), {}, force=True).leave()
    assert out.read_bytes() == b""


@pytest.mark.parametrize("ordered", [False, True])
def test_killed_again_and_again(
    source: Path, tmp_path: Path, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_module, "GROUP_ROWS", 5)
    out = tmp_path / "out.jsonl"
    generator = random.Random(int(ordered))
    asked = n_runs = 0
    while True:
        n_runs += 1
        model = Model({"row 7": (400, 99), "row 100": (400, 99)}, dies_after=generator.randrange(40))
        job = open_job(str(source), str(out), {"model": "m"})
        try:
            run(job, model, ordered=ordered)
        except Killed:
            asked += len(model.asked)
            # What a process had not handed to the system is lost, and a piece of a line may be there.
            job.leave()
            with out.open("ab") as file:
                file.write(b'{"prompt": "row'[: generator.randrange(15)])
            with journal_path(out).open("ab") as file:
                file.write(b"\1" * generator.randrange(RECORD.size))
            continue
        job.complete()
        break
    assert n_runs > 5
    numbers = [row["i"] for row in read(out)]
    assert sorted(numbers) == [i for i in range(300) if i not in (7, 100)]
    if ordered:
        assert numbers == sorted(numbers)
    assert sorted(row["row"] for row in read(errors_path(out))) == [8, 101]
    assert asked < 2000


def test_other_settings_or_input(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    open_job(str(source), str(out), {"model": "m"}).leave()
    with pytest.raises(BatchError, match="begun with another model"):
        open_job(str(source), str(out), {"model": "n"})
    with source.open("a") as file:
        file.write('"one more"\n')
    with pytest.raises(BatchError, match="begun with another input"):
        open_job(str(source), str(out), {"model": "m"})
    journal_path(out).write_text("nonsense")
    with pytest.raises(BatchError, match="no journal"):
        open_job(str(source), str(out), {"model": "m"})
    with pytest.raises(BatchError, match="own answers"):
        open_job(str(source), str(source), {})


def test_retries(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kukri.runtime.batch.runner.RETRY_SECONDS", 0.001)
    out = tmp_path / "out.jsonl"
    model = Model({"row 1": (503, 2), "row 2": (503, 3), "row 3": (400, 1)})
    job = open_job(str(source), str(out), {})
    run(job, model)
    job.complete()
    assert [model.asked.count(f"row {i}") for i in (1, 2, 3)] == [3, 3, 1]
    assert sorted((row["row"], row["error"]["status_code"]) for row in read(errors_path(out))) == [
        (3, 503),
        (4, 400),
    ]


def test_custom_ids(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"messages": [{"role": "user", "content": "x"}]}
    source.write_text(
        "".join(json.dumps({"custom_id": i, "body": body}) + "\n" for i in ("a", "b", "a")) + "{\n"
    )
    job = open_job(str(source), str(out), {})
    run(job, Model())
    job.complete()
    rows = read(out)
    assert sorted(row["custom_id"] for row in rows) == ["a", "b"]
    assert rows[0]["response"]["status_code"] == 200
    assert rows[0]["error"] is None
    second, damaged = read(errors_path(out))
    assert (second["custom_id"], second["row"]) == ("a", 3)
    assert "of an earlier row" in second["error"]["message"]
    assert (damaged["row"], "not valid JSON" in damaged["error"]["message"]) == (4, True)


def test_csv_out(tmp_path: Path) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("prompt,n\nä,1\nb,2\n", "utf-8")
    job = open_job(str(source), str(out), {})
    run(job, Model(), ordered=True)
    job.complete()
    assert out.read_text("utf-8").splitlines() == [
        "prompt,n,answer,finish_reason",
        "ä,1,Ä,stop",
        "b,2,B,stop",
    ]


def test_parquet_out(source: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out.parquet"
    job = open_job(str(source), str(out), {})
    run(job, Model())
    job.complete()
    table = parquet.read_table(out).to_pylist()
    assert sorted(row["i"] for row in table) == list(range(300))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.parquet"]


def test_a_column_that_is_taken(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "v"}\n{"prompt": "x", "answer": "y"}\n')
    job = open_job(str(source), str(out), {})
    run(job, Model())
    assert "--answer-column" in read(errors_path(out))[0]["error"]["message"]
    job.leave()


@pytest.mark.parametrize(
    ("name", "text", "way_out"),
    [
        ("in.csv", "prompt,answer\nx,y\n", "--answer-column"),
        ("in.csv", "prompt,finish_reason\nx,y\n", "cannot be an input's"),
        ("in.jsonl", '{"prompt": "x", "answer": "y"}\n', "--answer-column"),
    ],
)
def test_no_row_is_answered_for_nothing(tmp_path: Path, name: str, text: str, way_out: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BatchError, match=way_out):
        open_job(str(tmp_path / name), str(tmp_path / "out.jsonl"), {})
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_answers_go_into_a_file(source: Path, tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="is a folder"):
        open_job(str(source), str(tmp_path), {})


def test_memory_of_rows_that_are_done() -> None:
    done = RowSet()
    for row in (1, 8, 64, 1 << 20, 8):
        done.add(row)
    assert len(done) == 4
    assert (8 in done, 9 in done, (1 << 20) in done, (1 << 30) in done) == (True, False, True, False)


def test_a_torn_journal(tmp_path: Path) -> None:
    path = tmp_path / "out.journal"
    journal = Journal.create(path, {"a": 1})
    journal.add([(1, 10, 0), (2, 20, 0)])
    journal.close()
    whole = path.read_bytes()
    for cut in range(len(whole) - 2 * RECORD.size, len(whole) + 1):
        path.write_bytes(whole[:cut])
        resumed = Journal.resume(path, {"a": 1})
        resumed.close()
        n = (cut - (len(whole) - 2 * RECORD.size)) // RECORD.size
        assert (len(resumed.done), resumed.ends) == (n, [(0, 0), (10, 0), (20, 0)][n])
        assert path.stat().st_size == len(whole) - (2 - n) * RECORD.size
