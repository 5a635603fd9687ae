"""Bounds of processor time that hold on any machine: stated for a usual one, and this one is compared."""

from __future__ import annotations

import json
import re
import time

USUAL_SECONDS = 0.03  # of `work` on one core of an EPYC 9004 at 3.7 GHz with Python 3.11


def work() -> None:
    """Some of everything that reading files and templates costs: parsing, dictionaries, patterns, loops."""
    items = [{"id": i, "text": f"word {i} of many", "parts": [i, i / 3, None]} for i in range(8_000)]
    read = json.loads(json.dumps(items))
    places = {item["text"]: item["id"] for item in read}
    words = re.findall(r"\w+|\s+", " ".join(places))
    total = 0
    for word in words:
        total += len(word.strip()) * (places.get(word, 1) & 7)
    assert total


def slowness() -> float:
    """How many times as long as on a usual machine Python takes here just now, at least 1.

    The largest of five: what shares a core with this process comes and goes.
    """
    taken = []
    for _ in range(5):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return max(1.0, max(taken) / USUAL_SECONDS)


def within(seconds: float, bound: float) -> bool:
    """Whether `seconds` of processor time are under a bound that is stated for a usual machine."""
    return seconds < bound or seconds < bound * slowness()
