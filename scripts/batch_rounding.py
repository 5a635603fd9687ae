"""How much logits depend on what runs beside them: KL divergence between steps of one row and of several.

    python scripts/batch_rounding.py MODEL --file TEXT [--device cpu] [--tokens 32] [-o md|json]

Sequences of TEXT are read alone, and then fed the following tokens one at a time: each sequence by itself,
and 2, 4, 8 and 16 of them in one step. The mean of KL(alone ‖ together) over all steps, the largest one, and
how often the likeliest token is the same; `prefill` is one pass over the same tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import kukri
from kukri.runtime.engine.cache import Batch, PageTable

CONTEXT = 96  # tokens of a sequence that are read before
SIZES = (1, 2, 4, 8, 16)


def step(
    machine: Any, table: PageTable, rows: list[tuple[int, list[int]]], wanted: bool = True
) -> np.ndarray:
    """Run new tokens of sequences; if they are `wanted`, the logits behind them, float32 [rows, vocab]."""
    starts = [int(table.lengths[sequence]) for sequence, _ in rows]
    for sequence, tokens in rows:
        table.extend(sequence, len(tokens))
    ids = [token for _, tokens in rows for token in tokens]
    positions = [np.arange(at, at + len(tokens)) for at, (_, tokens) in zip(starts, rows, strict=True)]
    batch = Batch(
        tokens=np.array(ids, np.int32),
        sequences=np.repeat([sequence for sequence, _ in rows], [len(t) for _, t in rows]).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        logits_indices=np.arange(len(ids) if wanted else 0, dtype=np.int32),
    )
    return machine.step(batch, table).copy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def decode(machine: Any, texts: list[list[int]], size: int, n: int) -> np.ndarray:
    """Logits of `n` steps of each text, `size` of them in one step: float32 [texts, n, vocab]."""
    table = PageTable(machine_pages(len(texts), n), len(texts))
    for sequence, text in enumerate(texts):
        step(machine, table, [(sequence, text[:CONTEXT])], wanted=False)
    found = []
    for first in range(0, len(texts), size):
        group = range(first, first + size)
        rows = [step(machine, table, [(i, [texts[i][CONTEXT + at]]) for i in group]) for at in range(n)]
        found.append(np.stack(rows, axis=1))
    return np.concatenate(found)


def prefill(machine: Any, texts: list[list[int]], n: int) -> np.ndarray:
    """The same logits of one pass over the `n` tokens of each text."""
    found = []
    for text in texts:
        table = PageTable(machine_pages(len(texts), n), len(texts))
        step(machine, table, [(0, text[:CONTEXT])], wanted=False)
        found.append(step(machine, table, [(0, text[CONTEXT : CONTEXT + n])]))
    return np.stack(found)


def machine_pages(n_texts: int, n: int) -> int:
    return n_texts * -(-(CONTEXT + n) // 64)


def facts(alone: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """Mean and largest KL(alone ‖ other), and the share of rows whose likeliest token is the same."""
    mean, most, same, n = 0.0, 0.0, 0, 0
    for one, two in zip(alone, other, strict=True):  # a text at a time, since vocabularies are large
        p, q = log_softmax(one), log_softmax(two)
        kl = np.maximum((np.exp(p) * (p - q)).sum(axis=-1), 0.0)
        mean, most, n = mean + float(kl.sum()), max(most, float(kl.max())), n + len(kl)
        same += int((one.argmax(axis=-1) == two.argmax(axis=-1)).sum())
    return {"mean_kl": mean / n, "max_kl": most, "same_top": same / n}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("-o", "--output", choices=("md", "json"), default="md")
    args = parser.parse_args()
    text = args.file.read_text()
    with kukri.load(args.model, device=args.device, context=256, parallel=max(SIZES)) as model:
        ids, length = model.encode(text), CONTEXT + args.tokens
        texts = [ids[i * length : (i + 1) * length] for i in range(max(SIZES))]
        if len(texts[-1]) < length:
            sys.exit(f"{args.file} has too few tokens: {len(ids)} of {length * max(SIZES)}")
        machine = model.engine.machine
        alone = decode(machine, texts, 1, args.tokens)
        found = {str(size): facts(alone, decode(machine, texts, size, args.tokens)) for size in SIZES}
        found["prefill"] = facts(alone, prefill(machine, texts, args.tokens))
        name = model.name
    if args.output == "json":
        print(json.dumps({"model": name, "tokens": args.tokens, "rows": found}))
        return 0
    print(f"| {name}: rows | mean KL | largest KL | same likeliest token |\n|---|--:|--:|--:|")
    for rows, each in found.items():
        print(f"| {rows} | {each['mean_kl']:.1e} | {each['max_kl']:.1e} | {100 * each['same_top']:.2f} % |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
