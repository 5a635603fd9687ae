"""The cold time to first token: a new process loads the model and generates one token.

    python -m kukri.cli.bench.cold MODEL PROMPT_TOKENS THREADS KV_TYPE DEVICE GPU_LAYERS DEVICES SPLIT CPU_MOE

loads, generates one token after a prompt of pseudo-random ids, and writes a line as soon as it has it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ...quant.child_process import start_python
from ..console import terminal

if TYPE_CHECKING:
    from .plan import Plan


def cold_start(path: Path, n_prompt: int, threads: int, plan: Plan) -> float | None:
    """Seconds from the start of a new process to its first token after `n_prompt` tokens.

    None if there is no Python to start or the process fails, for example because memory is short.
    """
    layers = "all" if plan.gpu_layers is None else str(plan.gpu_layers)
    arguments = [str(path.resolve()), str(n_prompt), str(threads), plan.kv_type, plan.device, layers]
    arguments += [plan.devices or "auto", plan.split_mode, str(plan.cpu_moe)]
    start = perf_counter()
    process = start_python(f"{__name__}:main", arguments, stdout=subprocess.PIPE)
    if process is None:
        return None
    with process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            seconds = perf_counter() - start
        except BaseException:  # also Ctrl-C: nobody waits for the answer any more
            process.kill()
            raise
    return seconds if line and process.returncode == 0 else None


def main(arguments: list[str]) -> None:
    """The new process: load, generate one token, write a line."""
    path, kv_type, device, layers, cards, split_mode, cpu_moe = arguments[0], *arguments[3:]
    n_prompt, threads = map(int, arguments[1:3])
    from ...runtime.engine.sampling.params import SamplingParams
    from ...runtime.model.loading import load_model
    from ...runtime.model.options import LoadOptions, device_numbers
    from .measure import random_ids

    greedy = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    context = n_prompt + 1
    options = LoadOptions(
        *(device, context, threads, kv_type),
        gpu_layers=None if layers == "all" else int(layers),
        devices=None if cards == "auto" else device_numbers(cards),
        split_mode=split_mode,
        cpu_moe=int(cpu_moe),
    )
    with load_model(path, options, warn=lambda _: None, text=False) as model:
        for _ in model.generate(random_ids(n_prompt, model.config.vocab_size).tolist(), greedy):
            terminal.write("first token\n")


if __name__ == "__main__":
    main(sys.argv[1:])
