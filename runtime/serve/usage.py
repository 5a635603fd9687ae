"""What the usage of an answer has beside its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..engine.stats import GenerationStats


def more_usage(*stats: GenerationStats) -> dict[str, Any]:
    """Of one answer or several: `cached_answers`, how many of them were kept from earlier requests, if any;
    and `routing`, a list of which model gave each, if one of two did."""
    more: dict[str, Any] = {}
    if kept := sum(each.from_cache for each in stats):
        more["cached_answers"] = kept
    if routing := [asdict(each.routing) for each in stats if each.routing is not None]:
        more["routing"] = routing
    return more


def total_usage(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The usage of several prompts: numbers are added, lists joined."""
    total: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, dict):
                total[key] = total_usage([total.get(key, {}), value])
            else:
                total[key] = total[key] + value if key in total else value
    return total
