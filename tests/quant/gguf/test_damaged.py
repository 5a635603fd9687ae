"""Damaged GGUF files, put together byte by byte: one line that says what is wrong, at no cost."""

import os
import random
import time
import tracemalloc
from pathlib import Path
from struct import pack

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kukri.quant.errors import DamagedFile
from kukri.quant.formats import FORMATS
from kukri.quant.gguf import reader as reader_module
from kukri.quant.gguf.budget import HeaderBudget
from kukri.quant.gguf.reader import GGUFFile

from ...usual_machine import within

UINT32, INT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 7, 8, 9, 10
HUGE = 1 << 60
F32, Q4_0, Q4_K = 0, 2, 12


def text(value: bytes) -> bytes:
    return pack("<Q", len(value)) + value


def key(name: bytes, kind: int, raw: bytes) -> bytes:
    return text(name) + pack("<I", kind) + raw


def array(kind: int, n: int, raw: bytes = b"") -> bytes:
    return pack("<IQ", kind, n) + raw


def record(name: bytes, dimensions: list[int], kind: int = F32, offset: int = 0) -> bytes:
    n = len(dimensions)
    return text(name) + pack(f"<I{n}QIQ", n, *dimensions, kind, offset)


def header(
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    keys, tensors = keys or [], tensors or []
    counts = pack(
        "<QQ",
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    return b"GGUF" + pack("<I", version) + counts + b"".join(keys) + b"".join(tensors)


def with_data(head: bytes, n_bytes: int) -> bytes:
    return head + bytes(-len(head) % 32 + n_bytes)


def keyed(kind: int, raw: bytes) -> bytes:
    return header([key(b"k", kind, raw)])


def nested(depth: int) -> bytes:
    return array(ARRAY, 1) * depth + array(UINT32, 1, pack("<I", 7))


def one_tensor(dimensions: list[int], kind: int = F32, offset: int = 0, n_bytes: int = 64) -> bytes:
    return with_data(header(tensors=[record(b"t", dimensions, kind, offset)]), n_bytes)


def aligned_by(kind: int, raw: bytes) -> bytes:
    return with_data(header([key(b"general.alignment", kind, raw)], [record(b"t", [4])]), 64)


DAMAGED = {
    "another format": (b"PK\3\4" + bytes(40), "is not a GGUF file, but a ZIP archive"),
    "an unknown format": (b"abcd" + bytes(40), "is not a GGUF file: it starts with b'abcd'"),
    "big-endian": (b"GGUF\0\0\0\3" + bytes(40), "is a big-endian GGUF file"),
    "version 0": (header(version=0), "is GGUF version 0; supported are 2 and 3"),
    "version 1": (header(version=1), "is GGUF version 1; supported are 2 and 3"),
    "version 4": (header(version=4), "is GGUF version 4"),
    "2^60 keys": (header(n_keys=HUGE), f"claims {HUGE} metadata keys, more than the file can hold"),
    "2^60 tensors": (header(n_tensors=HUGE), f"claims {HUGE} tensors"),
    "2^64-1 tensors": (header(n_tensors=2**64 - 1), "tensors, more than the file can hold"),
    "one key too many": (header([key(b"k", BOOL, b"\1")], n_keys=2), "claims 2 metadata keys|key 2 of 2"),
    "one tensor too many": (header(tensors=[record(b"t", [4])], n_tensors=2), "claims 2 tensors"),
    "empty key": (header([key(b"", UINT64, bytes(8))]), "metadata key 1 of 1 is 0 bytes long"),
    "2^60 bytes of key": (header([pack("<Q", HUGE) + bytes(20)]), f"metadata key 1 of 1 is {HUGE} bytes"),
    "long key": (header([key(b"k" * 65536, BOOL, b"\1")]), "65536 bytes long; 1 to 65535 are allowed"),
    "cut key": (header([pack("<Q", 99) + bytes(20)]), "metadata key 1 of 1 runs past the end"),
    "key not UTF-8": (header([key(b"\xff", BOOL, b"\1")]), "metadata key 1 of 1 is not UTF-8"),
    "same key twice": (header([key(b"k", BOOL, b"\1")] * 2), "metadata key 'k' appears twice"),
    "unknown value type": (keyed(13, bytes(8)), "metadata 'k' has an unknown value type, 13"),
    "bool of 2": (keyed(BOOL, b"\2"), "metadata 'k' is a bool with the value 2"),
    "2^60 bytes of text": (keyed(STRING, pack("<Q", HUGE)), "metadata 'k' runs past the end of the file"),
    "unknown element type": (keyed(ARRAY, array(77, 0)), "array of an unknown value type, 77"),
    "2^60 numbers": (keyed(ARRAY, array(UINT32, HUGE)), f"claims {HUGE} elements in metadata 'k'"),
    "2^60 texts": (keyed(ARRAY, array(STRING, HUGE, bytes(99))), f"claims {HUGE} elements in metadata 'k'"),
    "2^60 arrays": (keyed(ARRAY, array(ARRAY, HUGE, bytes(99))), f"claims {HUGE} elements in metadata 'k'"),
    "2^62 times 4 wraps": (keyed(ARRAY, array(UINT32, 2**62)), "more than the file can hold"),
    "long text in array": (
        keyed(ARRAY, array(STRING, 1, pack("<Q", HUGE))),
        "element 0 of metadata 'k' runs",
    ),
    "bool array of 2": (keyed(ARRAY, array(BOOL, 3, b"\0\2\1")), "has a bool that is neither 0 nor 1"),
    "deep arrays": (keyed(ARRAY, nested(5)), "metadata 'k' nests arrays more than 4 deep"),
    "very deep arrays": (keyed(ARRAY, nested(100_000)), "metadata 'k' nests arrays more than 4 deep"),
    "alignment 0": (aligned_by(UINT32, pack("<I", 0)), "general.alignment is 0, which is not a power of two"),
    "alignment 24": (aligned_by(UINT32, pack("<I", 24)), "general.alignment is 24"),
    "alignment signed": (aligned_by(INT32, pack("<i", 32)), "general.alignment is not a uint32"),
    "alignment text": (aligned_by(STRING, text(b"32")), "general.alignment is not a uint32"),
    "alignment array": (aligned_by(ARRAY, array(UINT32, 1, bytes(4))), "general.alignment is not a uint32"),
    "alignment 2^31": (aligned_by(UINT32, pack("<I", 1 << 31)), "tensor 't'.*runs past the end"),
    "empty tensor name": (header(tensors=[record(b"", [4])]), "name of tensor 1 of 1 is 0 bytes long"),
    "tensor name not UTF-8": (header(tensors=[record(b"\xff", [4])]), "name of tensor 1 of 1 is not UTF-8"),
    "same tensor twice": (
        with_data(header(tensors=[record(b"t", [4]), record(b"t", [4], offset=32)]), 64),
        "tensor 't' appears twice",
    ),
    "no dimensions": (header(tensors=[record(b"t", []) + bytes(8)]), "tensor 't' has 0 dimensions"),
    "5 dimensions": (one_tensor([1] * 5), "tensor 't' has 5 dimensions; 1 to 4 are allowed"),
    "2^32-1 dimensions": (
        header(tensors=[text(b"t") + b"\xff" * 40]),
        "tensor 't' has 4294967295 dimensions",
    ),
    "dimension of zero": (one_tensor([4, 0]), r"tensor 't' has a dimension of zero: \(0, 4\)"),
    "size wraps 2^64": (one_tensor([1 << 32, 1 << 32]), "tensor 't' .* runs past the end of the file"),
    "size wraps to 16": (one_tensor([(1 << 62) + 4]), "tensor 't' .* runs past the end of the file"),
    "four huge dimensions": (one_tensor([2**64 - 1] * 4), "tensor 't' .* runs past the end of the file"),
    "blocks wrap": (one_tensor([32, 1 << 60], Q4_0), "tensor 't' .* runs past the end of the file"),
    "known type": (one_tensor([256], 16), r"has type 16 \(IQ2_XXS\); supported are F32, F16, .*MXFP4"),
    "unknown type": (one_tensor([256], 999), r"has type 999 \(unknown\); supported are F32"),
    "odd width": (
        one_tensor([576], Q4_K),
        "'t' is Q4_K with rows of 576, no multiple of 256",
    ),
    "unaligned offset": (one_tensor([4], offset=8), "tensor 't' is at offset 8, not a multiple of 32"),
    "offset past the end": (one_tensor([4], offset=64), r"tensor 't' \(16 bytes\) runs past the end"),
    "offset wraps": (one_tensor([4], offset=2**64 - 32), "tensor 't' .* runs past the end"),
    "cut tensor": (one_tensor([17]), "tensor 't' .* runs past the end"),
    "no data": (header(tensors=[record(b"t", [4])]), "tensor 't' .* runs past the end"),
    "overlap": (
        with_data(header(tensors=[record(b"b", [4], offset=32), record(b"a", [9])]), 96),
        "tensors 'a' and 'b' overlap",
    ),
    "same place": (
        with_data(header(tensors=[record(b"a", [4]), record(b"b", [4])]), 64),
        "'a' and 'b' overlap",
    ),
    "newline in a name": (
        with_data(header(tensors=[record(b"a\nb" + b"c" * 99, [0])]), 64),
        r"tensor 'a\\nb.{58}…' has a dimension",
    ),
}


def refusal(path: Path) -> str:
    with pytest.raises(DamagedFile) as error:
        GGUFFile.open(path)
    message = str(error.value)
    assert message.startswith(path.name)
    assert message.isprintable()
    assert len(message) < 300
    return message


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named(case: str, tmp_path: Path) -> None:
    raw, message = DAMAGED[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(DamagedFile, match=message):
        GGUFFile.open(path)
    assert within(time.process_time() - started, 0.5)
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()
    refusal(path)


def test_sound_files_pass_the_same_builder(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header())
    assert GGUFFile.open(path).tensors == {}
    path.write_bytes(keyed(ARRAY, nested(4 - 1)))
    assert GGUFFile.open(path).metadata["k"][0][0][0].tolist() == [7]
    path.write_bytes(with_data(header(tensors=[record(b"b", [4], offset=32), record(b"a", [8])]), 48))
    assert list(GGUFFile.open(path).tensors) == ["b", "a"]
    path.write_bytes(aligned_by(UINT32, pack("<I", 1)))
    assert GGUFFile.open(path).tensors["t"].shape == (4,)


def test_empty_files_and_pipes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"")
    assert refusal(path) == "m.gguf: is empty"
    with pytest.raises(IsADirectoryError):
        GGUFFile.open(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert refusal(tmp_path / "pipe") == "pipe: is not an ordinary file"


def test_huge_claims_in_a_huge_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file large enough for its claims is not read to the end to find that they are nonsense."""
    path = tmp_path / "m.gguf"
    for head, message in [
        (header(n_keys=1 << 20), "has 1048576 metadata keys; at most 65536 are read"),
        (header(n_tensors=1 << 20), "has 1048576 tensors; at most 32768 are read"),
        (keyed(ARRAY, array(0, 1 << 25)), "has 33554432 elements in metadata 'k'; at most 16777216"),
        (keyed(ARRAY, array(UINT32, 1 << 25)), "'k', more than the first 67108864 bytes can hold"),
        (keyed(STRING, pack("<Q", 1 << 34)), "lies beyond the first 67108864 bytes"),
    ]:
        path.write_bytes(head)
        os.truncate(path, 1 << 35)  # sparse: takes no space
        assert message in refusal(path)
    monkeypatch.setattr(reader_module, "HeaderBudget", lambda: HeaderBudget(elements=5))
    path.write_bytes(
        header([key(b"a", ARRAY, array(UINT32, 4, bytes(16))), key(b"b", ARRAY, array(0, 2, b"ab"))])
    )
    assert "has 2 elements in metadata 'b'; at most 1 are read" in refusal(path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small model with metadata of all kinds and several formats; its last tensor ends the file."""
    path = tmp_path_factory.mktemp("sound") / "m.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_uint32("test.number", 7)
    writer.add_bool("test.yes", True)
    writer.add_array("test.tokens", ["a", "bc", "日本", "x" * 300, "", "d"])
    writer.add_array("test.scores", [0.5, 1.5, 2.5])
    rng = np.random.default_rng(0)
    for name in ("Q4_0", "Q6_K", "F16"):
        data = rng.integers(0, 256, (16, FORMATS[name].row_bytes(256)), dtype=np.uint8)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_a_file_cut_anywhere(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(sound)
    assert len(GGUFFile.open(path).tensors) == 3
    header_bytes = sound.index(b"F16") + 64
    cuts = [
        *range(header_bytes),
        *random.Random(0).sample(range(header_bytes, len(sound)), 200),
        len(sound) - 1,
    ]
    for cut in cuts:
        path.write_bytes(sound[:cut])
        refusal(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_changed_bytes(sound: bytes, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    raw = bytearray(sound)
    header_bytes = sound.index(b"F16") + 64
    values = st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, header_bytes))] = data.draw(values)
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(raw)
    try:
        file = GGUFFile.open(path)
    except DamagedFile:
        refusal(path)
        return
    for tensor in file.tensors.values():
        assert tensor.dequantize().shape == tensor.shape
