"""`llm bench --serve`: what it sends, what it counts, and how it tells it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from pathlib import Path

import pytest
import typer

from kukri.cli.bench.serving.client import Sample, Target
from kukri.cli.bench.serving.command import limits, rates
from kukri.cli.bench.serving.measure import Limits, run, summary
from kukri.cli.bench.serving.report import plot, written
from kukri.cli.bench.serving.workload import Job, jobs

from ....running import Run, failed


def sample(first: float, *rest: float, tokens: int = 0, error: str = "") -> Sample:
    return Sample(10.0, [10 + first, *(10 + each for each in rest)], 5, tokens or 1 + len(rest), error)


def test_what_is_counted() -> None:
    found = summary(
        [sample(0.1, 0.2, 0.4), sample(0.3, 0.9, tokens=5), sample(1.0, error="HTTP 500")],
        seconds=2.0,
        concurrency=2,
        rate=None,
        limits=Limits(first_token=0.2),
    )
    assert (found["requests"], found["failed"], found["error"]) == (3, 1, "HTTP 500")
    assert found["new_tokens_per_second"] == pytest.approx(4)
    assert found["requests_per_second"] == pytest.approx(1)
    assert found["goodput"] == pytest.approx(0.5)
    assert found["ttft_p50"] == pytest.approx(0.2)
    assert found["tpot_mean"] == pytest.approx((0.15 + 0.15) / 2)
    assert found["itl_mean"] == pytest.approx((0.1 + 0.2 + 0.6) / 3)
    nothing = summary([sample(1.0, error="x")], 1.0, 1, None, Limits())
    assert nothing["ttft_p99"] is None
    assert "–/–/–" in written([nothing], "md", None)


def test_lengths_and_texts() -> None:
    fixed = jobs(5, 12, 7, seed=1)
    assert {(len(job.prompt.split()), job.n_prompt, job.n_new) for job in fixed} == {(12, 12, 7)}
    assert len({job.prompt for job in fixed}) == 5
    assert fixed == jobs(5, 12, 7, seed=1)
    drawn = jobs(2000, None, None, seed=1)
    lengths = sorted(job.n_prompt for job in drawn)
    assert 90 < lengths[1000] < 160
    assert lengths[0] >= 4
    assert lengths[-1] <= 1024
    assert len(set(lengths)) > 200


async def answering(status: bytes, body: bytes) -> Sample:
    """What the client makes of a server that answers this."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status + b"\r\ntransfer-encoding: chunked\r\n\r\n")
        for start in range(0, len(body), 50):  # cut anywhere
            part = body[start : start + 50]
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        return await Target(f"http://127.0.0.1:{port}", None, None).complete("x", 3, 0)


def test_the_client() -> None:
    events = b"".join(
        b"data: " + json.dumps(event).encode() + b"\n\n"
        for event in (
            {"choices": [{"text": "a"}], "usage": None},
            {"choices": [{"text": ""}]},
            {"choices": [{"text": "b"}]},
            {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}},
        )
    )
    found = asyncio.run(answering(b"200 OK", events + b"data: [DONE]\n\n"))
    assert (found.prompt_tokens, found.new_tokens, len(found.parts), found.error) == (4, 2, 2, "")
    assert "HTTP 404" in asyncio.run(answering(b"404 Not Found", b"nothing")).error
    assert asyncio.run(answering(b"200 OK", b"data: [DONE]\n\n")).error == "the answer has no tokens"
    assert "broke" in asyncio.run(answering(b"200 OK", b'data: {"error": "it broke"}\n\n')).error
    assert asyncio.run(Target("http://127.0.0.1:9", None, None).complete("x", 1, 0)).error


def test_no_more_clients_than_asked_for() -> None:
    class Counting(Target):
        open = most = 0

        async def complete(self, prompt: str, n_new: int, seed: int) -> Sample:
            Counting.open += 1
            Counting.most = max(Counting.most, Counting.open)
            await asyncio.sleep(0.01)
            Counting.open -= 1
            return sample(0.1)

    asked = [Job("x", 1, 1)] * 9
    samples, _ = asyncio.run(run(Counting("", None, None), asked, 3, None, 0))
    assert (len(samples), Counting.most) == (9, 3)
    samples, seconds = asyncio.run(run(Counting("", None, None), asked, 9, 100.0, 0))
    assert len(samples) == 9
    assert seconds > 0.02


def test_flags(llm_inside: Run) -> None:
    assert limits(["ttft=500,tpot=50"]) == Limits(0.5, 0.05)
    assert rates(["2,inf"]) == [2.0, None]
    for wrong in ("0", "-1", "fast"):
        with pytest.raises(typer.BadParameter):
            rates([wrong])
    with pytest.raises(typer.BadParameter):
        limits(["speed=1"])
    failed(llm_inside("bench", "--serve", "http://127.0.0.1:9", "-p", "1,2"), 2)
    failed(llm_inside("bench", "--serve", "http://127.0.0.1:9", "--parallel", "2"), 2)
    failed(llm_inside("bench", "--plot", "x.png"), 2)
    assert "does not answer" in failed(llm_inside("bench", "--serve", "http://127.0.0.1:9"), 1)


@pytest.mark.slow
def test_a_server_that_it_starts(llm: Run, tiny: Path, tmp_path: Path) -> None:
    done = llm(
        "bench", "--serve", tiny, "--concurrency", "1,3", "-p", 10, "-n", 6, "--requests", 6,
        "--device", "cpu", "-o", "json", "--plot", tmp_path / "speed.svg",
    )  # fmt: skip
    one, three = json.loads(done.stdout)
    assert (one["concurrency"], three["concurrency"]) == (1, 3)
    assert one["failed"] == three["failed"] == 0
    assert one["new_tokens"] == three["new_tokens"] == 36
    assert (tmp_path / "speed.svg").read_text("utf-8").startswith("<?xml")


def test_forms(tmp_path: Path) -> None:
    results = [summary([sample(0.1, 0.2)], 1.0, n, None, Limits()) for n in (1, 4)]
    assert json.loads(written(results, "json", None)) == results
    assert [json.loads(line) for line in written(results, "jsonl", None).splitlines()] == results
    assert len(list(csv.DictReader(io.StringIO(written(results, "csv", None))))) == 2
    assert written(results, "auto", 200).count("\n| ") == 3
    assert "|" not in written(results, "auto", 40)
    plot(results, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").stat().st_size > 1000
