"""Generate many tokens many times over in one process: do memory and speed stay flat?

    python scripts/long_run.py MODEL [--tokens 2000] [--times 20]

Each round is a fresh generation of the same length from a prompt of its own, through text, as in a chat.
Memory is what is resident in private pages after the round, so that the mapped file does not count.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import kukri
from kukri.runtime.engine.sampling.params import SamplingParams


def private_megabytes() -> float:
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(n) for n in re.findall(r"(?m)^Private_\w+: +(\d+) kB", text)) / 1024


def rounds(model: kukri.Model, tokens: int, times: int) -> list[tuple[float, float]]:
    """(private megabytes, tokens a second of decoding) after each round."""
    found = []
    for i in range(times):
        ids = model.encode(f"Round {i}. Tell me a long story.")
        params = SamplingParams(temperature=0.8, seed=i, max_tokens=tokens, ignore_eos=True)
        start = time.perf_counter()
        characters = sum(map(len, model.stream(ids, params)))
        seconds = time.perf_counter() - start
        assert model.stats.new_tokens == tokens, model.stats
        assert characters
        found.append((private_megabytes(), tokens / seconds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    context = arguments.tokens + 64
    with kukri.load(arguments.model, context=context, threads=arguments.threads) as model:
        found = rounds(model, arguments.tokens, arguments.times)
    for i, (megabytes, speed) in enumerate(found):
        print(f"round {i + 1:3}: {megabytes:8.1f} MB private, {speed:7.1f} tokens/s")
    memory, speeds = zip(*found, strict=True)
    print(
        f"memory: {memory[0]:.1f} MB after the first round, {memory[-1]:.1f} MB after the last; "
        f"speed: first half {sum(speeds[: len(speeds) // 2]) / (len(speeds) // 2):.1f} tokens/s, "
        f"second half {sum(speeds[len(speeds) // 2 :]) / (len(speeds) - len(speeds) // 2):.1f}"
    )


if __name__ == "__main__":
    main()
