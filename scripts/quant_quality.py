"""Quality of kukri's calibrated quantisation beside llama.cpp's, at the same bytes.

    python scripts/quant_quality.py CHECKPOINT --calibration TEXT --file TEXT [--llama-cpp DIR] [--work DIR]

Writes the checkpoint (a Hugging Face folder) as Q8_0 with `llm quantize`, as Q4_0 and int4 with its
`--calibration`, and, given a folder with llama-quantize and llama-imatrix, as Q8_0, Q4_0 and Q4_K_M with
their importance matrix of that text. Files that are in `--work` already are not made again.

Prints, on the first 16 windows of 512 tokens, bytes, bits a weight, perplexity, KL divergence from the
checkpoint and how often the likeliest token is the same, all measured by `llm eval`: with the reference
machine, so that only weights differ, or with `--device cpu`, whose 8-bit activations count as well. `--plot`
draws divergence against size.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

LLM = [sys.executable, "-m", "kukri.cli.main"]


def run(*command: object) -> str:
    """What a command prints; ends the script if it fails."""
    began = time.perf_counter()
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    print(f"{time.perf_counter() - began:6.1f} s  {' '.join(map(str, command))}", file=sys.stderr)
    if result.returncode:
        sys.exit(f"failed: {command[0]}")
    return result.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--work", type=Path, default=Path("quality"))
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--device", default="reference")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    name, files = args.checkpoint.name, []
    for kind in ("q8_0", "q4_0", "int4"):
        files.append(args.work / f"{name}-kukri-{kind}.gguf")
        text = () if kind == "q8_0" else ("--calibration", args.calibration)
        if not files[-1].exists():
            run(*LLM, "quantize", args.checkpoint, files[-1], "--type", kind, *text)
    if args.llama_cpp:
        whole, matrix = args.work / f"{name}-bf16.gguf", args.work / f"{name}.imatrix"
        if not whole.exists():
            run(*LLM, "quantize", args.checkpoint, whole, "--type", "bf16")
        if not matrix.exists():
            run(args.llama_cpp / "llama-imatrix", "-m", whole, "-f", args.calibration, "-o", matrix)
        for kind in ("Q8_0", "Q4_0", "Q4_K_M"):
            files.append(args.work / f"{name}-llama.cpp-{kind}.gguf")
            if not files[-1].exists():
                run(args.llama_cpp / "llama-quantize", "--imatrix", matrix, whole, files[-1], kind)
    how = ("--file", args.file, "-c", 512, "--limit", 512 * args.windows, "--device", args.device, "-o", "md")
    saved = args.work / f"{name}-{args.windows}-{args.device}.logits"  # so that the original runs once
    if not saved.exists():
        print(run(*LLM, "eval", args.checkpoint, *how, "--save-logits", saved))
    plot = ("--plot", args.plot) if args.plot else ()
    print(run(*LLM, "eval", *files, *how, "--baseline", saved, *plot))
    for file in files:
        print(f"{file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
