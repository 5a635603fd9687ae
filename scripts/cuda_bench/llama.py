"""What llama.cpp's tools do in the tests of `bench_cuda.py all`, with the same models."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from cuda_bench.batch import DEPTH
from cuda_bench.models import write_model

SEQUENCES, TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128), 64
ON_CARD = "-ngl 99 -fa 1"


def llama_speeds(llama_bench: Path, shape: str, kind: str) -> dict[str, float]:
    """Tokens a second by the name of the test: of llama-bench, and of the llama-batched-bench beside it."""
    speeds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path, shape, kind)
        for flags in ("-p 4096 -n 128", "-p 0 -n 128 -d 8192"):
            for found in json.loads(_output(llama_bench, path, f"{flags} -r 3 -o json") or "[]"):
                test = f"pp{found['n_prompt']}" if found["n_prompt"] else f"tg{found['n_gen']}"
                depth = found.get("n_depth", 0)
                speeds[test + (f" @ d{depth}" if depth else "")] = found["avg_ts"]
        context = max(SEQUENCES) * (DEPTH + TOKENS)
        flags = f"-c {context} -npp {DEPTH} -ntg {TOKENS} -npl {','.join(map(str, SEQUENCES))}"
        text = _output(llama_bench.with_name("llama-batched-bench"), path, f"{flags} --output-format jsonl")
        for line in text.splitlines():
            if line.startswith("{"):
                found = json.loads(line)
                speeds[f"tg{TOKENS} @ d{DEPTH}, {found['pl']} sequences"] = found["speed_tg"]
    return speeds


def _output(program: Path, model: Path, flags: str) -> str:
    """What a tool prints; nothing, and a line that says so, if it fails."""
    try:
        command: list[str | Path] = [program, "-m", model, *ON_CARD.split(), *flags.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as problem:
        print(f"cannot start {program}: {problem.strerror}")
        return ""
    if done.returncode:
        print(f"{program.name} {flags} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return ""
    return done.stdout
