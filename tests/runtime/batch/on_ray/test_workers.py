"""Rows handed out to workers that are lost: each is answered once. Workers are objects here, without Ray."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kukri.runtime.batch.ahead import RowsAhead
from kukri.runtime.batch.job import errors_path, open_job
from kukri.runtime.batch.on_ray import workers as workers_module
from kukri.runtime.batch.on_ray.worker import Asked, Done, Order, Report
from kukri.runtime.batch.on_ray.workers import WorkerLost, Workers
from kukri.runtime.batch.requests import Asking
from kukri.runtime.batch.rows import BatchError
from kukri.runtime.batch.runner import Batch
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve.on_ray.model_file import ModelFile

ORDER = Order(ModelFile("m", Path("m"), "d"), LoadOptions())


class Machine:
    """A place whose workers answer prompts in capitals, until `dies` says that one is lost."""

    def __init__(self, key: str, dies: Any = lambda text: False, report: Report | None = None) -> None:
        self.key = self.name = key
        self.dies = dies
        self.report = report or Report()
        self.answered: list[str] = []
        self.most = self.n_started = 0

    def start(self) -> Machine:
        self.n_started += 1
        self._waiting: list[Asked] = []
        return self

    async def load(self, order: Order) -> Report:
        await asyncio.sleep(0)
        return self.report

    async def exchange(self, asked: Sequence[Asked]) -> list[Done]:
        self._waiting += asked
        self.most = max(self.most, len(self._waiting))
        await asyncio.sleep(1e-4)
        for _, _, body in self._waiting:
            if self.dies(body["messages"][-1]["content"]):
                raise WorkerLost("a test")
        n = random.randrange(1, 4)
        taken, self._waiting = self._waiting[:n], self._waiting[n:]
        done = []
        for number, url, body in taken:
            assert url == "/v1/chat/completions"
            text = body["messages"][-1]["content"]
            self.answered.append(text)
            message = {"role": "assistant", "content": text.upper()}
            done.append((number, 200, {"choices": [{"message": message, "finish_reason": "stop"}]}))
        return done

    def stop(self) -> None:
        self._waiting = []


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "WATCH_SECONDS", 0.002)
    monkeypatch.setattr(workers_module, "RESTART_SECONDS", 0.001)


def run(folder: Path, machines: list[Machine], n: int = 400, **more: Any) -> tuple[list[str], list[str]]:
    """Run a batch of n rows; its answers in their order, and what was remarked."""
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"row {i}"}) + "\n" for i in range(n)))
    job = open_job(str(source), str(out), {})
    remarks: list[str] = []
    workers = Workers(lambda: list(machines), ORDER, 4, remarks.append, **more)
    batch = Batch(RowsAhead(job.rows), Asking(), workers, job.lines, job.output, 1, retries=0)
    sizes = []

    def resized(width: int) -> None:
        sizes.append(width)
        batch.width = width

    workers.resized = resized
    asyncio.run(batch.run())
    job.complete()
    assert sizes
    return [json.loads(line)["answer"] for line in out.read_text().splitlines()], remarks


ALL = sorted(f"ROW {i}" for i in range(400))


def test_all_rows_once_and_no_machine_has_too_many(tmp_path: Path) -> None:
    machines = [Machine("a"), Machine("b"), Machine("c")]
    answers, remarks = run(tmp_path, machines)
    assert sorted(answers) == ALL
    assert not remarks
    assert all(4 <= machine.most <= 6 for machine in machines)
    assert all(len(machine.answered) > 40 for machine in machines)


def test_lost_workers_are_replaced_and_their_rows_done_again(tmp_path: Path) -> None:
    generator = random.Random(1)
    machines = [Machine(key, lambda text: generator.random() < 0.01) for key in "ab"]
    answers, remarks = run(tmp_path, machines)
    assert sorted(answers) == ALL
    assert sum(machine.n_started for machine in machines) == 2 + len(remarks) > 6
    assert "the worker is lost (a test)" in remarks[0]
    assert "rows are done again" in remarks[0]


def test_machines_go_and_come(tmp_path: Path) -> None:
    machines = [Machine("a")]

    def leaves(text: str) -> bool:
        if len(machines[0].answered) < 50 or machines[0].key != "a":
            return False
        machines[:] = [Machine("b"), Machine("c")]
        return True

    machines[0].dies = leaves
    first = machines[0]
    answers, remarks = run(tmp_path, machines)
    assert sorted(answers) == ALL
    assert remarks[-1] == "a is gone"
    assert first.n_started == 1
    assert {machine.key for machine in machines if machine.answered} == {"b", "c"}


def test_a_row_that_ends_its_workers_fails_alone(tmp_path: Path) -> None:
    machines = [Machine(key, lambda text: text == "row 7") for key in "ab"]
    answers, _ = run(tmp_path, machines, n=60)
    assert sorted(answers) == sorted(f"ROW {i}" for i in range(60) if i != 7)
    (error,) = map(json.loads, errors_path(tmp_path / "out.jsonl").read_text().splitlines())
    assert (error["row"], error["fields"]) == (8, {"prompt": "row 7"})
    assert "5 workers were lost" in error["error"]["message"]


def test_machines_that_are_refused_are_named(tmp_path: Path) -> None:
    machines = [Machine("a"), Machine("b", report=Report("its m.gguf is another file"))]
    answers, remarks = run(tmp_path, machines)
    assert sorted(answers) == ALL
    assert remarks == ["b takes no part: its m.gguf is another file"]
    assert machines[1].n_started == 1
    machines[0] = Machine("c", report=Report("it has kukri 0, not 1"))
    (tmp_path / "out.jsonl").unlink()
    with pytest.raises(
        BatchError, match=r"no machine .* c: it has kukri 0, not 1; b: its m\.gguf is another"
    ):
        run(tmp_path, machines)


def test_nobody_comes(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="has had no machine"):
        run(tmp_path, [], patience=0.01)


def test_a_worker_that_never_loads(tmp_path: Path) -> None:
    class Ends(Machine):
        async def load(self, order: Order) -> Report:
            raise WorkerLost("its process ended")

    machines = [Ends("a"), Machine("b")]
    answers, remarks = run(tmp_path, machines)
    assert sorted(answers) == ALL
    assert machines[0].n_started >= 4 or "a takes no part" not in " ".join(remarks)
    (tmp_path / "out.jsonl").unlink()
    with pytest.raises(BatchError, match="a: its worker ends whenever it loads"):
        run(tmp_path, machines[:1])
