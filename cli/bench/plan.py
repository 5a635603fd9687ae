"""The plan of `llm bench`: its tests, and the parsing of flags that take lists of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ...runtime.adapters.stored import Adapters

MOST_VALUES = 64  # of one flag
MOST_TOKENS = 1 << 24
MOST_THREADS = 1024
MOST_PARALLEL = 256

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:([+*])(\d{1,9}))?)?", re.ASCII)


@dataclass(frozen=True)
class Test:
    """Prefill of `n_prompt` tokens, then decode of `n_gen`, behind `n_depth` tokens already in the cache, for
    each of `n_parallel` sequences at the same time."""

    n_prompt: int
    n_gen: int
    n_depth: int
    n_parallel: int = 1

    @property
    def name(self) -> str:
        parts = [f"{kind}{n}" for kind, n in (("pp", self.n_prompt), ("tg", self.n_gen)) if n]
        depth = f" @ d{self.n_depth}" if self.n_depth else ""
        return "+".join(parts) + depth + (f" x{self.n_parallel}" if self.n_parallel > 1 else "")

    @property
    def n_tokens(self) -> int:
        """Tokens of a sequence that are timed."""
        return self.n_prompt + self.n_gen


@dataclass(frozen=True)
class Plan:
    """The measurements of one `llm bench`: every test, for each model and each number of threads. With
    `speculate`, decoding is measured a second time, with drafts."""

    tests: Sequence[Test]
    threads: Sequence[int | None]
    repetitions: int
    kv_type: str
    device: str
    gpu_layers: int | None
    warm_up: bool
    cold: bool
    adapters: Adapters | None = None
    speculate: str = "off"
    devices: str | None = None  # numbers of cards
    split_mode: str = "auto"
    cpu_moe: int = 0  # layers whose experts are on the CPU
    draft: str | None = None  # file or folder of a draft model

    @property
    def placing(self) -> dict[str, Any]:
        """Where models run, and how they are kept there: what `load_options` takes of it."""
        names = ("device", "kv_type", "gpu_layers", "devices", "split_mode", "cpu_moe")
        return {name: getattr(self, name) for name in names}


def numbers(texts: Sequence[str], name: str, least: int = 0, most: int = MOST_TOKENS) -> list[int]:
    """Parse lists of numbers and ranges in llama-bench's syntax; a usage error for flag `name` if they are
    wrong.
    """
    found: list[int] = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        for number in _range(part, name):
            if not least <= number <= most:
                raise typer.BadParameter(f"{number} is not in the range {least}…{most}", param_hint=name)
            if len(found) == MOST_VALUES:
                raise typer.BadParameter(f"more than {MOST_VALUES} values", param_hint=name)
            found.append(number)
    return found


def _range(part: str, name: str) -> Iterator[int]:
    """`first`, `first-last`, `first-last+step` or `first-last*factor`."""
    match = _RANGE.fullmatch(part)
    if match is None:
        raise typer.BadParameter(
            f"{part!r} is no number, and no range such as 1-4, 0-1024+256 or 1-16*2", param_hint=name
        )
    first, last, sign, by = int(match[1]), int(match[2] or match[1]), match[3] or "+", int(match[4] or 1)
    if last < first or by < 1 or (sign == "*" and (by < 2 or first < 1)):
        raise typer.BadParameter(f"{part!r} does not lead from its first number to its last", param_hint=name)
    while first <= last:
        yield first
        first = first + by if sign == "+" else first * by


def pair(text: str) -> tuple[int, int]:
    try:
        prompt, gen = numbers([text], "-pg", 1)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not two numbers, as in 512,128", param_hint="-pg") from None
    return prompt, gen
