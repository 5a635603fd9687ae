"""`llm bench --serve`: a server that runs already, or one that is started for a model, under load."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from ....quant.child_process import child_environment, python_command
from ....quant.package import PACKAGE_FOLDER
from ....runtime.hub.resolve import resolve
from ...connect.client import ServerClient
from ...console import terminal
from ...console.progress import Progress
from .client import Target
from .measure import Limits, Result, run, summary
from .report import plot, written
from .workload import jobs

LOAD_SECONDS = 600
_LIMIT = re.compile(r"(ttft|tpot)=(\d+(?:\.\d+)?)", re.ASCII)


@dataclass(frozen=True)
class ServingPlan:
    """What to measure: `target` is an address or a model, lengths that are None are drawn for each request,
    and `requests` None are four for each client, at least 16."""

    target: str
    concurrency: Sequence[int]
    rates: Sequence[float | None]
    requests: int | None
    n_prompt: int | None
    n_new: int | None
    limits: Limits
    flags: Sequence[str]  # of the server that is started for a model
    api_key: str | None
    seed: int = 0


def bench_server(plan: ServingPlan, form: str, picture: Path | None) -> None:
    """Measure, and write the results to stdout in the format `form`, and into `picture`."""
    if re.match(r"https?://", plan.target):
        results = _measured(plan, plan.target.removesuffix("/").removesuffix("/v1"))
    else:
        path = resolve(plan.target, Progress)
        flags = [*plan.flags, "--parallel", str(max(plan.concurrency))]
        with _server([str(path.resolve()), *flags]) as url:
            results = _measured(plan, url)
    terminal.write(written(results, form, terminal.width()))
    if picture is not None:
        plot(results, picture)


def _measured(plan: ServingPlan, url: str) -> list[Result]:
    target = Target(url, _first_model(url, plan.api_key), plan.api_key)
    results = []
    with terminal.status(f"{url}: warming up …"):
        asyncio.run(run(target, jobs(2, 16, 8, plan.seed + 1), 2, None, 0))
    for clients in plan.concurrency:
        for rate in plan.rates:
            n = plan.requests or max(16, 4 * clients)
            asked = jobs(n, plan.n_prompt, plan.n_new, plan.seed + 2 + clients)
            with terminal.status(f"{url}: {clients} clients …"):
                samples, seconds = asyncio.run(run(target, asked, clients, rate, plan.seed))
            results.append(summary(samples, seconds, clients, rate, plan.limits))
    return results


def _first_model(url: str, api_key: str | None) -> str | None:
    """The first model that the server lists; None if it lists none. Raises ServerError."""
    try:
        return str(ServerClient(url, api_key).get("/v1/models")["data"][0]["id"])
    except (LookupError, TypeError):
        return None


@contextmanager
def _server(arguments: Sequence[str]) -> Iterator[str]:
    """The address of a server in a process of its own, whose model is loaded, while the block runs."""
    words = ["serve", *arguments, "--port", "0"]
    command = python_command("kukri.cli.main:main")
    if command is None:
        raise RuntimeError("there is no Python here that could run a server: start one, and give its address")
    with subprocess.Popen(  # noqa: S603 - this very package
        [*command, *words], stderr=subprocess.PIPE, env=child_environment(), cwd=PACKAGE_FOLDER
    ) as process:
        try:
            assert process.stderr is not None
            said: list[str] = []
            while not (found := re.search(r"listening on (http://\S+)", said[-1] if said else "")):
                line = process.stderr.readline().decode("utf-8", "replace")
                if not line:
                    why = said[-1].strip() if said else "it said nothing"
                    raise RuntimeError(f"the server did not start: {why}")
                said.append(line)
            threading.Thread(target=process.stderr.read, daemon=True).start()
            with terminal.status("loading the model …"):
                _wait_for(found[1])
            yield found[1]
        finally:
            process.kill()


def _wait_for(url: str) -> None:
    """Wait until the server's model is loaded. RuntimeError if it is not."""
    end = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=30):  # noqa: S310 - the one started here
                return
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", "replace")
            if "cannot be loaded" in text:
                raise RuntimeError(json.loads(text)["error"]["message"]) from None
        except OSError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"the server did not load its model within {LOAD_SECONDS} s")


def limits(texts: Sequence[str]) -> Limits:
    """`ttft=500 tpot=50`, in milliseconds, as Limits; a usage error for others."""
    found = {}
    for text in (part for each in texts for part in each.split(",")):
        match = _LIMIT.fullmatch(text.strip())
        if match is None:
            raise typer.BadParameter(
                f"{text!r} is no limit such as ttft=500 or tpot=50", param_hint="--goodput"
            )
        found[match[1]] = float(match[2]) / 1000
    return Limits(found.get("ttft"), found.get("tpot"))


def rates(texts: Sequence[str]) -> list[float | None]:
    """Requests a second, or "inf" for as fast as they are answered; a usage error for others."""
    found: list[float | None] = []
    for text in (part.strip() for each in texts for part in each.split(",")):
        try:
            rate = float(text)
        except ValueError:
            rate = 0.0
        if not rate > 0:
            raise typer.BadParameter(f"{text!r} is no number of requests a second", param_hint="--rate")
        found.append(None if rate == float("inf") else rate)
    return found
