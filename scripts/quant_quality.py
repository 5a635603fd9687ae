"""Compare the quality of kukri's calibrated quantisation with llama.cpp's at the same file size.

    python scripts/quant_quality.py CHECKPOINT --calibration TEXT --file TEXT [--llama-cpp DIR] [--work DIR]

Quantises the checkpoint (a Hugging Face folder) with `llm quantize`: to q8_0, and with `--calibration` to
q4_0 and int4. `--llama-cpp` names a folder with llama-quantize and llama-imatrix; these make Q8_0, Q4_0 and
Q4_K_M with an importance matrix of the same text. Files that are in `--work` already are kept.

Prints the table of `llm eval` on the first 16 windows of 512 tokens: size, bits per weight, perplexity, KL
divergence from the checkpoint, same top token. The default device is the reference machine, with which only
the weights differ; `--device cpu` also quantises activations to 8 bits. `--plot` draws divergence against
size.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

LLM = [sys.executable, "-m", "kukri.cli.main"]


def run(*command: object) -> str:
    """Run a command and return its output; exit if it fails."""
    began = time.perf_counter()
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=False)
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
        unquantised, matrix = args.work / f"{name}-bf16.gguf", args.work / f"{name}.imatrix"
        if not unquantised.exists():
            run(*LLM, "quantize", args.checkpoint, unquantised, "--type", "bf16")
        if not matrix.exists():
            run(args.llama_cpp / "llama-imatrix", "-m", unquantised, "-f", args.calibration, "-o", matrix)
        for kind in ("Q8_0", "Q4_0", "Q4_K_M"):
            files.append(args.work / f"{name}-llama.cpp-{kind}.gguf")
            if not files[-1].exists():
                run(args.llama_cpp / "llama-quantize", "--imatrix", matrix, unquantised, files[-1], kind)
    options = (
        "--file",
        args.file,
        "-c",
        512,
        "--limit",
        512 * args.windows,
        "--device",
        args.device,
        "-o",
        "md",
    )
    saved = args.work / f"{name}-{args.windows}-{args.device}.logits"  # so that the checkpoint runs once
    if not saved.exists():
        print(run(*LLM, "eval", args.checkpoint, *options, "--save-logits", saved))
    plot = ("--plot", args.plot) if args.plot else ()
    print(run(*LLM, "eval", *files, *options, "--baseline", saved, *plot))
    for file in files:
        print(f"{file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
