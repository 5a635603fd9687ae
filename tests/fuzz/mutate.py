"""Changes to sound files that keep most of their structure, so that they get past the first check.

All take a `random.Random`, or what hypothesis gives for one, and nothing else decides what they do.
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

# Where sizes, counts, signs and products of them turn over.
NUMBERS = (
    *(
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        9,
        16,
        31,
        32,
        33,
        63,
        64,
        100,
        127,
        128,
        255,
        256,
        257,
        511,
        512,
        1023,
        1024,
        4096,
    ),
    *(65535, 65536, 1 << 20, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53, 1 << 60),
    *(1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 1),
)
TEXTS = (
    "",
    " ",
    "a",
    "\0",
    "\n",
    "é",
    "日本",
    "\U0001f600",
    "<|im_end|>",
    "<0x0A>",
    "{{",
    "x" * 300,
    "../x",
    "%d" * 9,
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, -(1 << 63), 0.5, -0.5, 1e-9, 1e30, 1e308, float("inf"), float("nan")),
    *([], [[]], {}, [None], {"type": "junk"}, ["a", 1], "\ud800"),
    *NUMBERS,
    *TEXTS,
)


def change_bytes(rng: Random, raw: bytes, within: int | None = None) -> bytes:
    """One change at some place of `raw`, or of its first `within` bytes."""
    at = rng.randrange(min(len(raw), within or len(raw)) + 1)
    size = 1 << rng.randrange(5)
    match rng.randrange(8):
        case 0:
            return raw[:at]
        case 1:
            return raw[:at] + raw[at + size :]
        case 2:
            return raw[:at] + rng.randbytes(size) + raw[at:]
        case 3:
            return raw[:at] + raw[at : at + size] * 2 + raw[at + size :]
        case 4:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice(NUMBERS) % (1 << 8 * width)
            return raw[:at] + number.to_bytes(width, "little") + raw[at + width :]
        case 5:
            there = rng.randrange(len(raw) + 1)
            return raw[:at] + raw[there : there + size] + raw[at + size :]
        case 6:
            return raw[:at] + rng.randbytes(size) + raw[at + size :]
    changed = bytearray(raw)
    if at < len(changed):
        changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def change_text(rng: Random, text: str) -> str:
    """One change to a text."""
    at = rng.randrange(len(text) + 1)
    stop = min(len(text), at + (1 << rng.randrange(4)))
    match rng.randrange(5):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + text[stop:]
        case 2:
            return text[:at] + rng.choice(TEXTS) + text[at:]
        case 3:
            return text[:at] + text[at:stop] * rng.choice((2, 3, 100)) + text[stop:]
    return rng.choice(TEXTS)


def change_number(rng: Random, number: int | float) -> int | float:
    """Another number, often a near one."""
    near = (number + 1, number - 1, -number, number * 2, number // 2 if number == number else 0)
    return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.choice(near)


def change_json(rng: Random, value: Any) -> Any:
    """`value`, which may be changed in place, with one thing in it that is different."""
    if isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(keys)
        if rng.random() < 0.8:
            value[key] = change_json(rng, value[key])
            return value
        return _change_container(rng, value, key)
    if rng.random() < 0.3:
        return _value(rng)
    if isinstance(value, bool) or value is None:
        return rng.choice((True, False, None, 0, "true"))
    if isinstance(value, int | float):
        return change_number(rng, value)
    return change_text(rng, value) if isinstance(value, str) else _value(rng)


def _value(rng: Random) -> Any:
    return copy.deepcopy(rng.choice(VALUES))  # the next change may be made inside of it


def _long(rng: Random) -> Any:
    """A long list of things that hardly take a byte, or an object of as many."""
    n = rng.choice((300, 3000, 50_000))
    unit = rng.choice(([], {}, [[]], [{}], {"a": []}, "", "a", 0, ["a", "a"], None))
    if rng.random() < 0.3:
        return {str(i): copy.copy(unit) for i in range(n)}
    return [copy.copy(unit) for _ in range(n)]


def _change_container(rng: Random, value: Any, key: Any) -> Any:
    if rng.random() < 0.02:
        value[key] = _long(rng)
        return value
    match rng.randrange(6):
        case 0:
            del value[key]
        case 1 if isinstance(value, dict):
            value[rng.choice(TEXTS)] = copy.deepcopy(value[key])
        case 1:
            value.insert(key, copy.deepcopy(value[key]))
        case 2:
            other = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
            value[key], value[other] = value[other], value[key]
        case 3:
            value[key] = _value(rng)
        case 4:
            value[key] = [value[key]]
        case 5:
            nested: Any = value[key]
            for _ in range(rng.choice((2, 60, 3000))):
                nested = [nested]
            value[key] = nested
    return value


def json_bytes(rng: Random, raw: bytes) -> bytes:
    """A JSON file changed in its structure, or now and then only in its letters."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return change_bytes(rng, raw)
    if rng.random() < 0.15:
        return change_bytes(rng, raw)
    try:
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            value = change_json(rng, value)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    except (RecursionError, ValueError):
        return change_bytes(rng, raw)
    if rng.random() < 0.05 and '": ' in text:  # the same key twice
        text = text.replace('{"', '{"model_type": 1, "', 1)
    return text.encode("utf-8", "surrogatepass")
