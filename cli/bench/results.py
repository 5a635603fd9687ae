"""The results of `llm bench`, a dict a test: what was measured, and on which model and machine."""

from __future__ import annotations

import statistics
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ... import __version__
from .plan import Test

if TYPE_CHECKING:
    from ..console.description import Description
    from .measure import LoadTimes, Used

Result = dict[str, Any]  # llama-bench's keys and further ones; docs/cli.md lists them


def about_model(about: Description, used: Used, test: Test, times: LoadTimes) -> Result:
    """What every result of a test says of the model, the machine, the test and loading."""
    from ...runtime.cpu.matrix_tiles import level_in_use
    from ...runtime.cpu.processors import cpu_name
    from ..console.description import human_count

    return {
        "build_commit": __version__,
        "cpu_info": cpu_name(),
        "simd": level_in_use(),
        "gpu_info": ", ".join(used.gpu_names),
        "backend": used.backend,
        "backends": used.backend,
        "model_filename": str(about.paths[0]),
        "model_type": f"{about.architecture} {human_count(about.n_params).replace(' ', '')} {about.quant}",
        "model_size": about.n_bytes,
        "model_n_params": about.n_params,
        "n_threads": used.threads,
        "n_gpu_layers": used.gpu_layers,
        "type_k": used.kv_type.split("/")[0],
        "type_v": used.kv_type.split("/")[-1],
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "n_parallel": test.n_parallel,
        "test": test.name,
        "test_time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "load_seconds": times.load_seconds,
        "compile_seconds": times.compile_seconds,
    }


def speeds(test: Test, seconds: list[float]) -> Result:
    """The times and speeds of a test whose runs took so many `seconds` each."""
    speeds = [test.n_parallel * test.n_tokens / s for s in seconds]
    return {
        "avg_ns": round(statistics.fmean(seconds) * 1e9),
        "stddev_ns": round(deviation(seconds) * 1e9),
        "avg_ts": statistics.fmean(speeds),
        "stddev_ts": deviation(speeds),
        "median_ts": statistics.median(speeds),
        "samples_ns": [round(s * 1e9) for s in seconds],
        "samples_ts": speeds,
    }


def deviation(values: list[float]) -> float:
    """Standard deviation of a sample, 0 of a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0
