"""A run against a server: so many clients at once, or so many requests a second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from .client import Sample, Target
from .workload import Job

Result = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """What a request may take, in seconds, to count for the goodput."""

    first_token: float | None = None
    per_token: float | None = None

    def kept_by(self, sample: Sample) -> bool:
        if self.first_token is not None and sample.first_token > self.first_token:
            return False
        return self.per_token is None or (sample.per_token or 0.0) <= self.per_token


async def run(
    target: Target, jobs: Sequence[Job], concurrency: int, rate: float | None, seed: int
) -> tuple[list[Sample], float]:
    """The samples of all jobs, and the seconds until the last was complete.

    At most `concurrency` requests are open at a time. With a `rate` they arrive at random times, so many a
    second on average (a Poisson process), and else as soon as another one ends.
    """
    slots = asyncio.Semaphore(concurrency)
    arrivals = np.random.default_rng(seed)

    async def one(number: int, job: Job) -> Sample:
        arrived = perf_counter()
        async with slots:
            sample = await target.complete(job.prompt, job.n_new, number)
        if rate is not None:
            sample.sent = arrived  # waiting for a slot is waiting
        return sample

    start = perf_counter()
    tasks = []
    for number, job in enumerate(jobs):
        if rate is not None:
            await asyncio.sleep(arrivals.exponential(1 / rate))
        tasks.append(asyncio.create_task(one(number, job)))
    samples = await asyncio.gather(*tasks)
    return list(samples), perf_counter() - start


def summary(
    samples: Sequence[Sample], seconds: float, concurrency: int, rate: float | None, limits: Limits
) -> Result:
    """The numbers that serving benchmarks report; times in seconds."""
    good = [sample for sample in samples if not sample.error]
    failed = [sample for sample in samples if sample.error]
    per_token = [sample.per_token for sample in good if sample.per_token is not None]
    new = sum(sample.new_tokens for sample in good)
    result: Result = {
        "concurrency": concurrency,
        "rate": rate,
        "requests": len(samples),
        "failed": len(failed),
        "error": failed[0].error if failed else "",
        "seconds": seconds,
        "requests_per_second": len(good) / seconds,
        "prompt_tokens": sum(sample.prompt_tokens for sample in good),
        "new_tokens": new,
        "new_tokens_per_second": new / seconds,
        "tokens_per_second": sum(sample.prompt_tokens + sample.new_tokens for sample in good) / seconds,
        "goodput": sum(limits.kept_by(sample) for sample in good) / seconds,
    }
    for name, values in (
        ("ttft", [sample.first_token for sample in good]),
        ("tpot", per_token),
        ("itl", [between for sample in good for between in sample.between]),
        ("latency", [sample.seconds for sample in good]),
    ):
        result |= _percentiles(name, values)
    return result


def _percentiles(name: str, values: Sequence[float]) -> Result:
    if not values:
        return {f"{name}_{which}": None for which in ("mean", "p50", "p90", "p99")}
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    mean = float(np.mean(values))
    return {f"{name}_mean": mean, f"{name}_p50": p50, f"{name}_p90": p90, f"{name}_p99": p99}
