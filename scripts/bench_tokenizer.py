"""How fast tokenizers load and encode.

    python scripts/bench_tokenizer.py TEXT TOKENIZER...

TEXT is a file of English text (maybe gzipped), a TOKENIZER anything that kukri.load_tokenizer takes. Each
runs in a process of its own, and prints one line:

    load    milliseconds, imports apart
    whole   MB/s of the whole text, by a tokenizer that has seen nothing before, and again
    pieces  MB/s of the text in pieces of about 2,000 characters, again by a fresh one
    first   milliseconds to encode one short sentence after loading
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
from pathlib import Path

PIECE = 2000  # characters
SENTENCE = "What is the capital of France, and how many people live there?"


def pieces_of(text: str) -> list[str]:
    pieces = []
    start = 0
    while start < len(text):
        stop = text.find(" ", start + PIECE)
        stop = len(text) if stop < 0 else stop
        pieces.append(text[start:stop])
        start = stop
    return pieces


def measure(text: str, path: str) -> str:
    from kukri.runtime.model.source import load_tokenizer

    times = []

    def timed(work: str | list[str]) -> None:
        start = time.perf_counter()
        tokenizer.encode(work) if isinstance(work, str) else [tokenizer.encode(piece) for piece in work]
        times.append(time.perf_counter() - start)

    start = time.perf_counter()
    tokenizer = load_tokenizer(path)
    times.append(time.perf_counter() - start)
    timed(SENTENCE)
    tokenizer = load_tokenizer(path)
    timed(text)
    timed(text)
    tokenizer = load_tokenizer(path)
    timed(pieces_of(text))
    load, first, *encoding = times
    megabytes = len(text.encode()) / 1e6
    speeds = [f"{megabytes / seconds:6.1f}" for seconds in encoding]
    return (
        f"{tokenizer.vocab_size:7}  load {1e3 * load:6.1f} ms  first {1e3 * first:5.1f} ms"
        f"  whole {speeds[0]}, again {speeds[1]}  pieces {speeds[2]} MB/s"
    )


def main() -> None:
    text_path, *paths = sys.argv[1:]
    if paths[1:]:
        for path in paths:
            subprocess.run([sys.executable, __file__, text_path, path], check=False)
        return
    data = Path(text_path).read_bytes()
    text = (gzip.decompress(data) if text_path.endswith(".gz") else data).decode()
    print(f"{paths[0][-48:]:>48}  {measure(text, paths[0])}", flush=True)


if __name__ == "__main__":
    main()
