"""A GGUF file taken apart, changed in any of its parts, and put together again without any check."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from struct import Struct, pack

from kukri.quant.formats import BY_TYPE

from .mutate import NUMBERS, TEXTS, change_bytes

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
SIZES = {kind: Struct("<" + code).size for kind, code in SCALARS.items()}
STRING, ARRAY = 8, 9
KINDS = (*SCALARS, STRING, ARRAY, 13, 255)


@dataclass
class Value:
    """A metadata value as it lies in the file; of an array, `kind` is that of its elements."""

    kind: int
    raw: bytes = b""
    array: bool = False
    count: int = 0  # as claimed
    texts: list[bytes] = field(default_factory=list)  # of arrays of strings

    def pack(self) -> bytes:
        if not self.array:
            return pack("<I", self.kind) + self.raw
        body = b"".join(pack("<Q", len(t)) + t for t in self.texts) if self.kind == STRING else self.raw
        return pack("<IIQ", ARRAY, self.kind, self.count) + body


@dataclass
class Tensor:
    name: bytes
    dimensions: list[int]
    kind: int
    offset: int

    def pack(self) -> bytes:
        n = len(self.dimensions)
        shape = [d % (1 << 64) for d in self.dimensions]
        return text(self.name) + pack(f"<I{n}QIQ", n, *shape, self.kind, self.offset % (1 << 64))


@dataclass
class Parts:
    version: int
    keys: list[tuple[bytes, Value]]
    tensors: list[Tensor]
    data: bytes

    def pack(self) -> bytes:
        head = b"".join(
            [
                b"GGUF" + pack("<IQQ", self.version, len(self.tensors), len(self.keys)),
                *(text(key) + value.pack() for key, value in self.keys),
                *(tensor.pack() for tensor in self.tensors),
            ]
        )
        return head + bytes(-len(head) % 32) + self.data


def text(value: bytes) -> bytes:
    return pack("<Q", len(value)) + value


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 8

    def take(self, n: int) -> bytes:
        self.at += n
        return self.raw[self.at - n : self.at]

    def number(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    def text(self) -> bytes:
        return self.take(self.number(8))

    def value(self) -> Value:
        kind = self.number(4)
        if kind == STRING:
            return Value(STRING, text(self.text()))
        if kind != ARRAY:
            return Value(kind, self.take(SIZES[kind]))
        kind, n = self.number(4), self.number(8)
        if kind == STRING:
            return Value(STRING, array=True, count=n, texts=[self.text() for _ in range(n)])
        return Value(kind, self.take(n * SIZES[kind]), array=True, count=n)


def take_apart(raw: bytes) -> Parts:
    """The parts of a sound file without nested arrays."""
    reader = _Reader(raw)
    n_tensors, n_keys = reader.number(8), reader.number(8)
    keys = [(reader.text(), reader.value()) for _ in range(n_keys)]
    tensors = []
    for _ in range(n_tensors):
        name, n = reader.text(), reader.number(4)
        dimensions = [reader.number(8) for _ in range(n)]
        tensors.append(Tensor(name, dimensions, reader.number(4), reader.number(8)))
    return Parts(raw[4], keys, tensors, raw[reader.at + -reader.at % 32 :])


def requantised(raw: bytes, kinds: list[int], rng: Random) -> bytes:
    """The same model with its matrices in other formats, filled with bytes of no meaning but small scales."""
    parts = take_apart(raw)
    data, offset = [], 0
    for i, tensor in enumerate(parts.tensors):
        kind = kinds[i % len(kinds)]
        if len(tensor.dimensions) == 2 and tensor.dimensions[0] % BY_TYPE[kind].block_size == 0:
            tensor.kind = kind
        row = BY_TYPE[tensor.kind].row_bytes(tensor.dimensions[0])
        n = row * math.prod(tensor.dimensions[1:])
        old = parts.data[tensor.offset : tensor.offset + n]
        content = old if tensor.kind == 0 else bytes(b & 0x1F for b in rng.randbytes(n))
        tensor.offset = offset
        data.append(content + bytes(-n % 32))
        offset += len(data[-1])
    parts.data = b"".join(data)
    return parts.pack()


def gguf_bytes(rng: Random, raw: bytes) -> bytes:
    """A GGUF file with a few of its parts changed, or of its first bytes."""
    try:
        parts = take_apart(raw)
    except (KeyError, IndexError, MemoryError, OverflowError):
        return change_bytes(rng, raw, 20_000)
    if rng.random() < 0.75:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            _change(rng, parts)
        raw = parts.pack()
        if rng.random() < 0.9:
            return raw
    return change_bytes(rng, raw, None if rng.random() < 0.1 else len(raw) - len(parts.data) + 64)


def _change(rng: Random, parts: Parts) -> None:
    what = rng.random()
    if what < 0.6 and parts.keys:
        _change_key(rng, parts)
    elif what < 0.95 and parts.tensors:
        _change_tensor(rng, parts)
    else:
        parts.version = rng.choice((0, 1, 2, 3, 4, 1 << 24))


def _change_key(rng: Random, parts: Parts) -> None:
    i = rng.randrange(len(parts.keys))
    key, value = parts.keys[i]
    match rng.randrange(8):
        case 0:
            del parts.keys[i]
        case 1:
            parts.keys.append((rng.choice((key, key + b"x", b"", b"\xff")), value))
        case 2:
            other = rng.choice(parts.keys)[1]
            parts.keys[i] = key, other
        case 3:
            parts.keys[i] = key, _any_value(rng)
        case _:
            _change_value(rng, value)


def _any_value(rng: Random) -> Value:
    what = rng.random()
    if what < 0.1:
        return _nested(rng)
    if what < 0.12:
        return _long(rng)
    kind = rng.choice(KINDS)
    if kind == STRING:
        return Value(STRING, text(rng.choice(TEXTS).encode()))
    n = rng.choice((0, 1, 2, 3, 300))
    return Value(kind, rng.randbytes(n * SIZES.get(kind, 1)), array=rng.random() < 0.4, count=n)


def _nested(rng: Random) -> Value:
    """Arrays in arrays, now and then too deep."""
    kind, count, raw = rng.choice((0, 5, STRING)), 0, b""
    if rng.random() < 0.8 and kind != STRING:
        count = rng.randrange(5)
        raw = rng.randbytes(count * SIZES[kind])
    for _ in range(rng.choice((1, 1, 2, 3, 4, 9))):
        raw = pack("<IQ", kind, count) + raw
        count = rng.choice((0, 1, 2, 3))
        raw, kind = raw * count, ARRAY
    return Value(ARRAY, raw, array=True, count=count)


def _long(rng: Random) -> Value:
    """A long array of things that take no bytes, or hardly any."""
    n = rng.choice((1 << 10, 1 << 13, 1 << 16))
    if rng.random() < 0.5:
        return Value(ARRAY, pack("<IQ", rng.choice((0, STRING, ARRAY)), 0) * n, array=True, count=n)
    units = ([b""], [b"", b"a"], [b"a"] * 300 + [b""], [b"\0"], [b"x" * 300, b""])
    texts = rng.choice(units)
    return Value(STRING, array=True, count=n // len(texts) * len(texts), texts=texts * (n // len(texts)))


def _change_value(rng: Random, value: Value) -> None:
    if value.array and rng.random() < 0.3:
        value.count = rng.choice((value.count + 1, value.count - 1, *NUMBERS)) % (1 << 64)
    elif value.texts:
        i = rng.randrange(len(value.texts))
        match rng.randrange(4):
            case 0:
                value.texts[i] = rng.choice(TEXTS).encode()
            case 1:
                value.texts[i] = change_bytes(rng, value.texts[i])
            case 2:
                value.texts[i] = rng.choice(value.texts)
            case 3:
                del value.texts[i]
                value.count -= 1
    elif rng.random() < 0.2:
        value.kind = rng.choice(KINDS)
    elif value.kind in SIZES and value.raw:
        size = SIZES[value.kind]
        at = rng.randrange(max(1, len(value.raw) // size)) * size
        number = rng.choice(NUMBERS) % (1 << 8 * size)
        if rng.random() < 0.5:
            old = int.from_bytes(value.raw[at : at + size], "little")
            number = rng.choice((old + 1, old - 1, old * 2, old // 2, old ^ 1 << rng.randrange(8 * size)))
        new = (number % (1 << 8 * size)).to_bytes(size, "little")
        value.raw = value.raw[:at] + new + value.raw[at + size :]
    else:
        value.raw = change_bytes(rng, value.raw)


def _change_tensor(rng: Random, parts: Parts) -> None:
    i = rng.randrange(len(parts.tensors))
    tensor = parts.tensors[i]
    match rng.randrange(8):
        case 0:
            del parts.tensors[i]
        case 1:
            parts.tensors.append(Tensor(rng.choice((tensor.name, tensor.name + b"x")), *_rest(tensor)))
        case 2:
            tensor.kind = rng.choice((*range(42), 1 << 31))
        case 3:
            tensor.offset = rng.choice((tensor.offset + 32, tensor.offset - 32, 0, *NUMBERS))
        case 4:
            other = rng.choice(parts.tensors)
            tensor.name, other.name = other.name, tensor.name
        case 5:
            tensor.dimensions = rng.choice(([], tensor.dimensions[::-1], [*tensor.dimensions, 1], [1] * 5))
        case _ if tensor.dimensions:
            k = rng.randrange(len(tensor.dimensions))
            old = tensor.dimensions[k]
            tensor.dimensions[k] = rng.choice((old + 1, old - 1, old * 2, old // 2, *NUMBERS))


def _rest(tensor: Tensor) -> tuple[list[int], int, int]:
    return tensor.dimensions, tensor.kind, tensor.offset
