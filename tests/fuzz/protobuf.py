"""A protocol-buffers message (tokenizer.model) changed field by field."""

from __future__ import annotations

from random import Random

from .mutate import NUMBERS, change_bytes

_FIXED = {1: 8, 5: 4}
Fields = list[tuple[int, int, bytes]]  # number, wire type, content


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _number(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(raw: bytes) -> Fields:
    """The fields of a message; IndexError or KeyError if it is none."""
    found: Fields = []
    at = 0
    while at < len(raw):
        key, at = _number(raw, at)
        wire = key & 7
        start = at
        if wire == 0:
            _, at = _number(raw, at)
        elif wire == 2:
            n, start = _number(raw, at)
            at = start + n
        else:
            at += _FIXED[wire]
        if at > len(raw):
            raise IndexError("a field runs past the end")
        found.append((key >> 3, wire, raw[start:at]))
    return found


def packed(message: Fields) -> bytes:
    return b"".join(
        varint(number << 3 | wire) + (varint(len(content)) if wire == 2 else b"") + content
        for number, wire, content in message
    )


def change_message(rng: Random, raw: bytes, depth: int = 3) -> bytes:
    """One change somewhere in a message, or in a message inside of it."""
    try:
        message = fields(raw)
    except (IndexError, KeyError):
        message = []
    if not message or rng.random() < 0.1:
        return change_bytes(rng, raw)
    i = rng.randrange(len(message))
    if rng.random() < 0.3:  # most fields are pieces; the few behind them are of more interest
        i = len(message) - 1 - rng.randrange(min(len(message), 4))
    number, wire, content = message[i]
    match rng.randrange(12):
        case 0:
            del message[i]
        case 1:
            message.insert(rng.randrange(len(message) + 1), message[i])
        case 2:
            message[i] = rng.choice((number + 1, 1, 2, 3, 100, 1 << 28)), wire, content
        case 3:
            other = rng.randrange(len(message))
            message[i], message[other] = message[other], message[i]
        case 4:
            message[i] = number, 0, varint(rng.choice(NUMBERS))
        case _ if wire == 0:
            message[i] = number, 0, varint(rng.choice(NUMBERS))
        case _ if wire == 2 and depth:
            message[i] = number, 2, change_message(rng, content, depth - 1)
        case _:
            message[i] = number, wire, change_bytes(rng, content)
    return packed(message)


def model_bytes(rng: Random, raw: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 4))):
        raw = change_message(rng, raw)
    return raw
