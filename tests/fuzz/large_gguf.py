"""GGUF files made to cost as much as they can; see large.py."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from struct import pack

from kukri.quant.gguf import budget
from kukri.tokenizer.readers import settings
from kukri.tokenizer.readers.gguf_keys import PREFIX_IDS

from .gguf_parts import ARRAY, STRING, text
from .large import Cases, registrar

CASES: Cases = {}
case = registrar(CASES)
FLOAT32, INT32, UINT8 = 6, 5, 0


def strings(texts: Iterable[bytes]) -> bytes:
    return b"".join(map(text, texts))


def array(kind: int, n: int, raw: bytes) -> bytes:
    return pack("<IIQ", ARRAY, kind, n) + raw


def gguf(path: Path, keys: dict[str, bytes], tensors: bytes = b"", n_tensors: int = 0) -> Path:
    """A file of metadata, `keys` with type and value as they lie in it, and of tensors' headers."""
    head = b"GGUF" + pack("<IQQ", 3, n_tensors, len(keys))
    with path.open("wb") as file:
        file.write(head + b"".join(text(key.encode()) + value for key, value in keys.items()) + tensors)
        file.write(bytes(-file.tell() % 32))
    return path


def vocabulary(tokens: bytes, n: int, **more: bytes) -> dict[str, bytes]:
    """The keys of a byte-level tokenizer beside those of a model without layers."""
    keys = {
        "general.architecture": pack("<I", STRING) + text(b"llama"),
        "tokenizer.ggml.model": pack("<I", STRING) + text(b"gpt2"),
        "tokenizer.ggml.pre": pack("<I", STRING) + text(b"gpt-2"),
        "tokenizer.ggml.tokens": array(STRING, n, tokens),
        "tokenizer.ggml.merges": array(STRING, 0, b""),
    }
    return keys | {f"tokenizer.ggml.{name}": value for name, value in more.items()}


@case
def gguf_empty_nested_arrays(folder: Path) -> Path:
    n = budget.MAX_HEADER_BYTES // 12 - 100
    return gguf(folder / "m.gguf", {"k": array(ARRAY, n, pack("<IQ", UINT8, 0) * n)})


@case
def gguf_nested_arrays_at_the_limit(folder: Path) -> Path:
    n = budget.MAX_NESTED
    return gguf(folder / "m.gguf", {"k": array(ARRAY, n, pack("<IQ", UINT8, 0) * n)})


@case
def gguf_deep_arrays(folder: Path) -> Path:
    n = 1 << 20
    return gguf(folder / "m.gguf", {"k": pack("<I", ARRAY) + pack("<IQ", ARRAY, 1) * n})


@case
def gguf_empty_strings(folder: Path) -> Path:
    n = budget.MAX_HEADER_BYTES // 8 - 100
    return gguf(folder / "m.gguf", {"k": array(STRING, n, bytes(8 * n))})


@case
def gguf_empty_strings_at_the_limit(folder: Path) -> Path:
    n = budget.MAX_STRINGS
    return gguf(folder / "m.gguf", {"k": array(STRING, n, bytes(8 * n))})


@case
def gguf_strings_that_are_hard_to_pack(folder: Path) -> Path:
    """Where packing begins anew, it finds one string and then none."""
    unit = strings([b"x", *[b""] * 256])
    n = budget.MAX_STRINGS // 257 * 257
    return gguf(folder / "m.gguf", {"k": array(STRING, n, unit * (n // 257))})


@case
def gguf_long_and_short_strings(folder: Path) -> Path:
    unit = strings([*[b"abcd"] * 300, b"", *[b"x" * 300] * 2])
    n = min(budget.MAX_STRINGS // 303, (budget.MAX_HEADER_BYTES - 1000) // len(unit))
    return gguf(folder / "m.gguf", {"k": array(STRING, 303 * n, unit * n)})


@case
def gguf_strings_with_zeros(folder: Path) -> Path:
    n = budget.MAX_STRINGS
    return gguf(folder / "m.gguf", {"k": array(STRING, n, strings([b"\0" + b"ab"]) * n)})


@case
def gguf_many_keys(folder: Path) -> Path:
    keys = {f"k{i}": array(STRING, 1, text(b"")) for i in range(budget.MAX_KEYS)}
    return gguf(folder / "m.gguf", keys)


@case
def gguf_long_keys(folder: Path) -> Path:
    keys = {f"{i}é" + "x" * 60_000: pack("<IB", UINT8, 1) for i in range(1000)}
    return gguf(folder / "m.gguf", keys)


@case
def gguf_a_long_text(folder: Path) -> Path:
    """Four bytes a character in memory, as its first needs them."""
    long = "\U0001f600".encode() + b"x" * (budget.MAX_TEXT_BYTES - 4096)
    keys = vocabulary(text(b"a"), 1) | {"general.name": pack("<I", STRING) + text(long)}
    return gguf(folder / "m.gguf", keys)


@case
def gguf_a_long_template(folder: Path) -> Path:
    long = "\U0001f600".encode() + b"x" * (budget.MAX_TEXT_BYTES - 4096)
    keys = vocabulary(text(b"a"), 1) | {"tokenizer.chat_template": pack("<I", STRING) + text(long)}
    return gguf(folder / "m.gguf", keys)


@case
def gguf_many_numbers(folder: Path) -> Path:
    n = budget.MAX_HEADER_BYTES // 8 - 1000
    return gguf(folder / "m.gguf", {"k": array(12, n, bytes(8 * n))})


@case
def gguf_many_tensors(folder: Path) -> Path:
    n = budget.MAX_TENSORS
    tensors = b"".join(text(b"%x" % i) + pack("<IQIQ", 1, 8, 0, 32 * i) for i in range(n))
    path = gguf(folder / "m.gguf", vocabulary(text(b"a"), 1), tensors, n)
    with path.open("ab") as file:
        file.write(bytes(32 * n))
    return path


@case
def gguf_many_tokens(folder: Path) -> Path:
    n = budget.MAX_STRINGS // 2
    tokens, merges = (
        strings(b"%x" % i for i in range(n)),
        strings(b"%x %x" % (i & 15, i >> 4) for i in range(n)),
    )
    return gguf(folder / "m.gguf", vocabulary(tokens, n, merges=array(STRING, n, merges)))


@case
def gguf_tokens_with_zeros(folder: Path) -> Path:
    """Such strings are read one by one, and their merges cannot be worked out from the tokens."""
    n = budget.MAX_STRINGS // 2
    tokens = strings([b"\0", *(b"%x" % i for i in range(1, n))])
    merges = strings([b"\0 1", *(b"%x %x" % (i >> 4, i & 15) for i in range(16, n + 15))])
    return gguf(folder / "m.gguf", vocabulary(tokens, n, merges=array(STRING, n, merges)))


@case
def gguf_control_tokens(folder: Path) -> Path:
    n = budget.MAX_STRINGS - 1
    types = array(INT32, n, pack("<i", 3) * n)
    tokens = strings(b"%x" % i for i in range(n))
    return gguf(folder / "m.gguf", vocabulary(tokens, n, token_type=types))


def control_tokens(folder: Path, tokens: list[bytes]) -> Path:
    n = len(tokens)
    return gguf(
        folder / "m.gguf", vocabulary(strings(tokens), n, token_type=array(INT32, n, pack("<i", 3) * n))
    )


@case
def gguf_a_long_control_token(folder: Path) -> Path:
    return control_tokens(folder, [b"x" * (1 << 25)])


@case
def gguf_control_tokens_of_any_length(folder: Path) -> Path:
    return control_tokens(folder, [b"ab" + b"x" * i for i in range(8000)])


@case
def gguf_control_tokens_of_any_beginning(folder: Path) -> Path:
    return control_tokens(folder, [chr(0x10000 + i).encode() + b"%d" % (i % 10) for i in range(60_000)])


@case
def gguf_control_tokens_at_the_limit(folder: Path) -> Path:
    n = settings.MAX_ADDED_CHARACTERS // settings.LONGEST_ADDED
    return control_tokens(folder, [(b"%d" % i).rjust(settings.LONGEST_ADDED, b"x") for i in range(n)])


def sentencepiece_keys(tokens: bytes, n: int) -> dict[str, bytes]:
    return vocabulary(
        tokens,
        n,
        model=pack("<I", STRING) + text(b"llama"),
        scores=array(FLOAT32, n, bytes(4 * n)),
        token_type=array(INT32, n, pack("<i", 1) * n),
    )


@case
def gguf_pieces_full_of_spaces(folder: Path) -> Path:
    unit = text(b"a" + "\u2581a".encode() * 63)
    n = (budget.MAX_HEADER_BYTES - (1 << 23)) // len(unit)
    return gguf(folder / "m.gguf", sentencepiece_keys(unit * n, n))


@case
def gguf_pieces_of_all_types(folder: Path) -> Path:
    n = 1 << 20
    keys = sentencepiece_keys(strings(b"%x" % i for i in range(n)), n)
    keys["tokenizer.ggml.token_type"] = array(INT32, n, pack("<i", 6) * n)
    return gguf(folder / "m.gguf", keys)


@case
def gguf_many_templates(folder: Path) -> Path:
    keys = vocabulary(text(b"a"), 1)
    keys |= {f"tokenizer.chat_template.{i}": pack("<I", STRING) + text(b"x") for i in range(60_000)}
    return gguf(folder / "m.gguf", keys)


@case
def gguf_sound_half_a_million_tokens(folder: Path) -> Path:
    """Twice the largest vocabulary that there is, with two merges, a score and a type for each token."""
    n = 1 << 19
    tokens, merges = [b"%d" % i for i in range(n)], [b"%d %d" % (i // 10, i % 10) for i in range(10, n)]
    return gguf(
        folder / "m.gguf",
        vocabulary(
            strings(tokens),
            n,
            merges=array(STRING, 2 * len(merges), strings(merges + merges)),
            scores=array(FLOAT32, n, bytes(4 * n)),
            token_type=array(INT32, n, pack("<i", 1) * n),
        ),
    )


@case
def gguf_strings_that_are_not_utf_8(folder: Path) -> Path:
    n = budget.MAX_STRINGS
    return gguf(folder / "m.gguf", {"k": array(STRING, n, strings([b"ab", b"\xff"]) * (n // 2))})


@case
def gguf_ends_that_are_texts(folder: Path) -> Path:
    """As an array of NumPy these would all be as long as the longest."""
    ends = array(STRING, 1001, strings([b"x" * (1 << 20), *[b"ab"] * 1000]))
    return gguf(folder / "m.gguf", vocabulary(strings([b"a"]), 1, eos_token_ids=ends))


@case
def gguf_many_ids_in_front(folder: Path) -> Path:
    n = (budget.MAX_HEADER_BYTES - 1000) // 4
    keys = vocabulary(strings([b"a"]), 1) | {PREFIX_IDS: array(INT32, n, bytes(4 * n))}
    return gguf(folder / "m.gguf", keys)
