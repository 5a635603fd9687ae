"""Traps 1 to 6: what a file claims. A one-line error, exit code 5, bounded time and memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import pack

import gguf
import pytest

from ...fuzz.gguf_parts import ARRAY, STRING, Parts, Tensor, Value, take_apart, text
from ...running import Run, failed
from .conftest import Refused

HUGE = 1 << 60
File = Callable[[bytes], Path]


@pytest.fixture
def parts(tiny: Path) -> Parts:
    return take_apart(tiny.read_bytes())


def tensor(parts: Parts, name: bytes) -> Tensor:
    return next(tensor for tensor in parts.tensors if tensor.name == name)


def set_key(parts: Parts, name: bytes, value: Value) -> None:
    parts.keys = [(key, old) for key, old in parts.keys if key != name] + [(name, value)]


def uint32(number: int) -> Value:
    return Value(4, pack("<I", number))


@pytest.mark.parametrize(
    "dimensions",
    [
        [(1 << 62) + 64, 265],
        [1 << 32, 1 << 32],
        [1 << 31, 1 << 31, 2, 1 << 31],
        [64, 1 << 58],
        [(1 << 64) - 64, 1],
        [1 << 63, 2],
    ],
    ids=str,
)
def test_trap_01_tensor_sizes_that_wrap(
    refused: Refused, llm_inside: Run, parts: Parts, model_file: File, dimensions: list[int]
) -> None:
    tensor(parts, b"token_embd.weight").dimensions = dimensions
    path = model_file(parts.pack())
    assert "token_embd.weight" in failed(llm_inside("show", path), 5)
    assert "token_embd.weight" in failed(llm_inside("bench", "-m", path), 5)
    if dimensions[0] == 1 << 32:
        assert "token_embd.weight" in refused(5, "run", "-m", path, "hi")


def test_trap_01_offsets_and_arrays_that_wrap(llm_inside: Run, parts: Parts, model_file: File) -> None:
    tensor(parts, b"token_embd.weight").offset = (1 << 64) - 32
    assert "past the end" in failed(llm_inside("run", "-m", model_file(parts.pack()), "hi"), 5)
    set_key(parts, b"x.array", Value(4, b"", array=True, count=1 << 62))
    assert "more than the file can hold" in failed(llm_inside("show", model_file(parts.pack())), 5)


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (b"llama.attention.head_count", 0),
        (b"llama.attention.head_count_kv", 0),
        (b"llama.attention.head_count_kv", 3),
        (b"llama.attention.head_count", 3),
        (b"llama.attention.head_count", 1 << 31),
        (b"llama.embedding_length", 0),
        (b"llama.block_count", 0),
        (b"llama.feed_forward_length", 0),
        (b"llama.rope.dimension_count", 0),
        (b"llama.context_length", 0),
        (b"llama.vocab_size", 0),
    ],
)
def test_trap_02_zeros_and_heads_that_do_not_divide(
    refused: Refused, llm_inside: Run, parts: Parts, model_file: File, key: bytes, number: int
) -> None:
    set_key(parts, key, uint32(number))
    path = model_file(parts.pack())
    failed(llm_inside("run", "-m", path, "hi"), 5)
    failed(llm_inside("bench", "-m", path), 5)
    if number == 0 and key == b"llama.attention.head_count":
        refused(5, "run", "-m", path, "hi")
        refused(5, "chat", "-m", path, input=b"hi")


def test_trap_02_a_dimension_of_zero_and_an_empty_key(
    refused: Refused, parts: Parts, model_file: File
) -> None:
    tensor(parts, b"output.weight").dimensions = [64, 0]
    assert "dimension of zero" in refused(5, "run", "-m", model_file(parts.pack()), "hi")
    tensor(parts, b"output.weight").dimensions = [64, 265]
    parts.keys.append((b"", uint32(1)))
    assert "0 bytes long" in refused(5, "show", model_file(parts.pack()))


@pytest.mark.parametrize(
    "raw",
    [
        b"GGUF" + pack("<IQQ", 3, HUGE, 0),
        b"GGUF" + pack("<IQQ", 3, 0, HUGE),
        b"GGUF" + pack("<IQQ", 3, (1 << 64) - 1, (1 << 64) - 1),
        b"GGUF" + pack("<IQQQ", 3, 0, 1, HUGE),
        b"GGUF" + pack("<IQQ", 3, 0, 1) + text(b"k") + pack("<IQ", STRING, HUGE),
        b"GGUF" + pack("<IQQ", 3, 0, 1) + text(b"k") + pack("<IIQ", ARRAY, 4, HUGE),
        b"GGUF" + pack("<IQQ", 3, 0, 1) + text(b"k") + pack("<IIQ", ARRAY, STRING, HUGE) + bytes(64),
        b"GGUF" + pack("<IQQ", 3, 0, 1) + text(b"k") + pack("<I", ARRAY) + pack("<IQ", ARRAY, 1) * 10_000,
    ],
    ids=["tensors", "keys", "both", "key length", "string", "array", "strings", "nested"],
)
def test_trap_03_a_tiny_file_with_huge_claims(
    refused: Refused, llm_inside: Run, model_file: File, raw: bytes
) -> None:
    path = model_file(raw)
    for command in (("run", "-m", path, "hi"), ("show", path), ("tokenize", "-m", path, "hi")):
        failed(llm_inside(*command), 5)
    if raw[8:16] == pack("<Q", HUGE):
        refused(5, "run", "-m", path, "hi")


@pytest.mark.parametrize(
    "key",
    [
        b"llama.block_count",
        b"llama.embedding_length",
        b"llama.attention.key_length",
        b"llama.expert_count",
        b"llama.nextn_predict_layers",
        b"llama.vocab_size",
        b"llama.feed_forward_length",
        b"llama.rope.dimension_count",
    ],
)
def test_trap_03_a_thousand_million_layers(
    refused: Refused, llm_inside: Run, parts: Parts, model_file: File, key: bytes
) -> None:
    set_key(parts, key, uint32(10**9))
    path = model_file(parts.pack())
    failed(llm_inside("run", "-m", path, "hi"), 5)
    if key in (b"llama.block_count", b"llama.attention.key_length"):
        refused(5, "run", "-m", path, "hi")


def test_trap_03_a_context_beyond_all_memory_is_no_obstacle(llm: Run, parts: Parts, model_file: File) -> None:
    set_key(parts, b"llama.context_length", uint32((1 << 31) - 1))
    path = model_file(parts.pack())
    assert llm("run", "-m", path, "-n", 1, "hi").returncode == 0
    assert "needs about" in failed(llm("run", "-m", path, "-c", (1 << 31) - 1, "hi"), 1)


def test_trap_04_a_file_cut_in_the_middle_of_a_tensor(
    refused: Refused, llm_inside: Run, tiny: Path, model_file: File
) -> None:
    raw = tiny.read_bytes()
    for size in (len(raw) - 1, len(raw) - 5000, len(raw) // 2):
        assert "past the end" in failed(llm_inside("run", "-m", model_file(raw[:size]), "hi"), 5)
    assert "past the end" in refused(5, "run", "-m", model_file(raw[: len(raw) // 2]), "hi")


@pytest.mark.parametrize(
    ("offset", "message"),
    [(1 << 40, "past the end"), (8, "not a multiple"), (0, "overlap"), (1 << 20, "past the end")],
)
def test_trap_04_offsets_past_the_end_unaligned_and_overlapping(
    refused: Refused, parts: Parts, model_file: File, offset: int, message: str
) -> None:
    tensor(parts, b"output.weight").offset = offset
    assert message in refused(5, "run", "-m", model_file(parts.pack()), "hi")


WRONG_TYPES = {
    b"tokenizer.ggml.scores": Value(0, bytes(265), array=True, count=265),
    b"tokenizer.ggml.model": Value(4, pack("<II", 1, 2), array=True, count=2),
    b"tokenizer.ggml.tokens": Value(4, bytes(4 * 265), array=True, count=265),
    b"tokenizer.ggml.token_type": Value(6, bytes(4 * 265), array=True, count=265),
    b"tokenizer.ggml.merges": uint32(1),
    b"tokenizer.ggml.eos_token_id": Value(STRING, text(b"x")),
    b"tokenizer.ggml.bos_token_id": Value(6, pack("<f", 1.0)),
    b"tokenizer.ggml.add_bos_token": uint32(2),
    b"tokenizer.chat_template": uint32(7),
    b"general.architecture": uint32(1),
    b"general.alignment": Value(5, pack("<i", 32)),
    b"llama.block_count": Value(STRING, text(b"2")),
    b"llama.rope.freq_base": Value(STRING, text(b"1e4")),
    b"llama.attention.layer_norm_rms_epsilon": Value(6, pack("<f", float("nan"))),
    b"llama.attention.head_count": Value(6, pack("<f", 4.0)),
    b"llama.context_length": Value(5, pack("<i", -1)),
}


@pytest.mark.parametrize("key", WRONG_TYPES, ids=bytes.decode)
def test_trap_05_metadata_of_the_wrong_type(
    llm_inside: Run, parts: Parts, model_file: File, key: bytes
) -> None:
    set_key(parts, key, WRONG_TYPES[key])
    if key == b"tokenizer.ggml.scores":
        set_key(parts, b"tokenizer.ggml.model", Value(STRING, text(b"llama")))
    line = failed(llm_inside("run", "-m", model_file(parts.pack()), "hi"), 5)
    assert key.decode().removeprefix("llama.").rpartition(".")[2] in line


@pytest.mark.parametrize(
    "alignment", [Value(5, pack("<i", -32)), uint32(0), uint32(24), Value(10, pack("<Q", 32))]
)
def test_trap_05_a_signed_or_zero_alignment(
    refused: Refused, parts: Parts, model_file: File, alignment: Value
) -> None:
    set_key(parts, b"general.alignment", alignment)
    assert "alignment" in refused(5, "run", "-m", model_file(parts.pack()), "hi")


@pytest.fixture
def shards(parts: Parts, tmp_path: Path) -> list[Path]:
    """The tiny model in two files."""
    paths, half, offset = [], len(parts.tensors) // 2, 0
    first, second = parts.tensors[:half], parts.tensors[half:]
    cut = second[0].offset
    for i, (tensors, data) in enumerate(((first, parts.data[:cut]), (second, parts.data[cut:]))):
        for entry in tensors:
            entry.offset -= offset
        offset = cut
        split = [
            (b"split.no", Value(2, pack("<H", i))),
            (b"split.count", Value(2, pack("<H", 2))),
            (b"split.tensors.count", Value(5, pack("<i", len(parts.tensors)))),
        ]
        piece = Parts(3, [*(parts.keys if i == 0 else []), *split], tensors, data)
        paths.append(tmp_path / f"tiny-0000{i + 1}-of-00002.gguf")
        paths[-1].write_bytes(piece.pack())
    return paths


def test_trap_06_the_second_shard_opened_first(llm_inside: Run, tiny: Path, shards: list[Path]) -> None:
    whole = llm_inside("run", "-m", tiny, "-t", 0, "-n", 8, "hi").stdout
    for path in shards:
        assert llm_inside("run", "-m", path, "-t", 0, "-n", 8, "hi").stdout == whole != b""
        assert llm_inside("show", path).returncode == 0


def test_trap_06_a_missing_shard_and_shards_in_one_file(
    refused: Refused, shards: list[Path], tmp_path: Path
) -> None:
    both = tmp_path / "both.gguf"
    both.write_bytes(shards[0].read_bytes() + shards[1].read_bytes())
    refused(5, "run", "-m", both, "hi")
    (tmp_path / "renamed.gguf").write_bytes(shards[0].read_bytes())
    assert "shard" in refused(5, "run", "-m", tmp_path / "renamed.gguf", "hi")
    shards[1].unlink()
    assert shards[1].name in refused(5, "run", "-m", shards[0], "hi")
    assert shards[1].name in refused(5, "show", shards[0])


def test_the_files_are_put_together_again_as_they_were(tiny: Path) -> None:
    """Without that the traps above would show nothing."""
    raw = tiny.read_bytes()
    assert take_apart(raw).pack() == raw
    assert gguf.GGUFReader(tiny).tensors
