"""`llm batch --ray` on a real cluster, whose nodes and drivers are killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kukri
from kukri.runtime.batch.job import journal_path
from kukri.runtime.batch.journal import RECORD
from kukri.runtime.batch.on_ray.worker import Order, Worker
from kukri.runtime.model.digest import model_digest
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.serve.on_ray.model_file import ModelFile

from ....ray_cluster import RayCluster
from ....running import LLM, Run
from ....tiny_model import write_tiny_model


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def questions(path: Path, n: int) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"text {i}", "i": i}) + "\n" for i in range(n)))
    return path


def noted(out: Path, than: int, process: subprocess.Popen[bytes]) -> int:
    """Wait until the journal has noted more rows, or the process has ended; the number of them."""
    journal, n, until = journal_path(out), 0, time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None and n <= than:
        time.sleep(0.02)
        if journal.exists():
            n = len(journal.read_bytes().partition(b"\n")[2]) // RECORD.size
    return n


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_node_and_the_driver_are_killed(
    ray_cluster: RayCluster, environment: dict[str, str], llm_inside: Run, tiny: Path, tmp_path: Path
) -> None:
    source, out = questions(tmp_path / "in.jsonl", 400), tmp_path / "out.jsonl"
    flags = ("-m", str(tiny), "--raw", "-t", "0", "-n", "60", "--parallel", "4")
    command = [*LLM, "batch", str(source), str(out), *flags, "--ray", ray_cluster.address]

    driver = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    n_done = noted(out, 0, driver)
    driver.kill()
    driver.communicate(timeout=60)
    assert 0 < n_done < 400

    driver = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    noted(out, n_done, driver)
    ray_cluster.kill("a")
    ray_cluster.add("b")
    stdout, stderr = driver.communicate(timeout=100)
    assert (driver.returncode, stdout) == (0, b""), stderr.decode()
    lines = stderr.decode().splitlines()
    assert any("a: the worker is lost" in line for line in lines), lines
    assert lines[0].startswith("2 workers: ")
    assert any("rows are done already" in line for line in lines)
    rows = read(out)
    assert sorted(row["i"] for row in rows) == list(range(400))

    whole = tmp_path / "whole.jsonl"
    done = llm_inside("batch", source, whole, *flags)
    assert done.returncode == 0, done.stderr
    assert sorted(map(str, rows)) == sorted(map(str, read(whole)))


def test_another_file_under_the_same_name_is_refused(tiny: Path, tmp_path: Path) -> None:
    digest = model_digest(tiny)
    with kukri.load(tiny) as model:
        assert model.fingerprint == digest  # so that a run that was begun without Ray goes on with it
    other = write_tiny_model(tmp_path / "other.gguf", seed=1)

    async def load(order: Order) -> str:
        return (await Worker().load(order, 1)).refused

    def reason(path: Path, **more: Any) -> str:
        return asyncio.run(load(Order(ModelFile(str(path), path, digest), LoadOptions(), **more)))

    assert reason(tiny) == ""
    assert f"{other} is another file" in reason(other)
    assert "none.gguf" in reason(tmp_path / "none.gguf")
    assert reason(tiny, version="0.0.1").startswith("it has kukri ")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:9", b"cannot be reached"),
        ("nonsense", b"takes the address of a cluster's head"),
        ("ray://127.0.0.1:10001", b"on a machine of the cluster"),
    ],
)
def test_no_cluster(llm_inside: Run, tiny: Path, tmp_path: Path, address: str, reason: bytes) -> None:
    pytest.importorskip("ray")
    source, out = questions(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    done = llm_inside("batch", source, out, "-m", tiny, "--ray", address)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1), done.stderr
    assert reason in done.stderr
    assert not out.exists()


def test_without_ray(llm_inside: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    source, out = questions(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    done = llm_inside("batch", source, out, "-m", tiny, "--ray", "auto")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1), done.stderr
    assert b"[ray]" in done.stderr
    done = llm_inside("batch", source, out, "-m", tiny, "--ray", "auto", "--dry-run")
    assert (done.returncode, b"--dry-run" in done.stderr) == (2, True)
