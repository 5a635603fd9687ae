"""GGUF files written by the gguf package: everything must come back as it went in."""

import os
import sys
import time
from pathlib import Path
from struct import pack

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from kukri.quant.errors import DamagedFile
from kukri.quant.formats import FORMATS
from kukri.quant.gguf import metadata as metadata_module
from kukri.quant.gguf.metadata import require, require_array
from kukri.quant.gguf.reader import GGUFFile

from ...usual_machine import within

AWKWARD = [
    "",
    "a",
    "日本語",
    "nul \0 inside",
    "\0" * 7,
    "x" * 255,
    "y" * 256,
    "é" * 300,
    "\x01\0\0\0\0\0\0\0z",
]


def random_blocks(name: str, rows: int, width: int, seed: int) -> np.ndarray:
    n_bytes = FORMATS[name].row_bytes(width)
    return np.random.default_rng(seed).integers(0, 256, (rows, n_bytes), dtype=np.uint8)


def write(path: Path, n_tensors: int = 5, **options: object) -> dict[str, np.ndarray]:
    """A small model of F32 tensors; in shards with split_max_tensors."""
    writer = gguf.GGUFWriter(path, "test", **options)
    writer.add_string("test.text", "größer")
    tensors = {f"t{i}": np.full((2 + i, 32), i, np.float32) for i in range(n_tensors)}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def assert_holds(file: GGUFFile, tensors: dict[str, np.ndarray]) -> None:
    assert list(file.tensors) == list(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(file.tensors[name].dequantize(), tensor)


def write_metadata(path: Path, add: dict[str, tuple]) -> GGUFFile:
    writer = gguf.GGUFWriter(path, "test")
    for key, (value, kind, *element_kind) in add.items():
        writer.add_key_value(key, value, kind, *element_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GGUFFile.open(path)


def test_metadata_of_every_type(tmp_path: Path) -> None:
    value = gguf.GGUFValueType
    scalars = {
        "u8": (255, value.UINT8),
        "i8": (-128, value.INT8),
        "u16": (65535, value.UINT16),
        "i16": (-32768, value.INT16),
        "u32": (2**32 - 1, value.UINT32),
        "i32": (-(2**31), value.INT32),
        "u64": (2**64 - 1, value.UINT64),
        "i64": (-(2**63), value.INT64),
        "f32": (0.1, value.FLOAT32),
        "f64": (0.1, value.FLOAT64),
        "yes": (True, value.BOOL),
        "no": (False, value.BOOL),
        "text": ("größer\n日本", value.STRING),
        "empty": ("", value.STRING),
    }
    file = write_metadata(tmp_path / "m.gguf", scalars)
    assert file.tensors == {}
    for key, (expected, kind) in scalars.items():
        if kind == value.FLOAT32:
            expected = float(np.float32(expected))
        assert file.metadata[key] == expected
        assert type(file.metadata[key]) is type(expected)
    assert file.metadata["general.architecture"] == "test"


def test_metadata_arrays(tmp_path: Path) -> None:
    array, value = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType
    codes = {"B": value.UINT8, "b": value.INT8, "H": value.UINT16, "h": value.INT16, "I": value.UINT32}
    codes |= {"i": value.INT32, "Q": value.UINT64, "q": value.INT64, "f": value.FLOAT32, "d": value.FLOAT64}
    numeric = {code: np.array([0, 1, 100, 7], code) for code in codes}
    add: dict[str, tuple] = {code: (v.tolist(), array, codes[code]) for code, v in numeric.items()}
    add["bools"] = ([True, False, True], array, value.BOOL)
    add["texts"] = (AWKWARD, array, value.STRING)
    add["nested"] = ([[1, 2, 3], [4, 5, 6]], array, value.ARRAY)
    file = write_metadata(tmp_path / "m.gguf", add)
    for code, expected in numeric.items():
        assert file.metadata[code].dtype == expected.dtype
        assert file.metadata[code].flags.writeable
        np.testing.assert_array_equal(file.metadata[code], expected)
    assert file.metadata["bools"].dtype == np.bool_
    assert file.metadata["bools"].tolist() == [True, False, True]
    assert file.metadata["texts"] == AWKWARD
    assert [row.tolist() for row in file.metadata["nested"]] == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(texts=st.lists(st.one_of(st.text(max_size=12), st.sampled_from(AWKWARD)), min_size=1, max_size=60))
def test_string_arrays_of_any_mixture(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata_module, "STRING_WINDOW", 100)
        patch.setattr(metadata_module, "SINGLE_STRINGS", 2)
        patch.setattr(metadata_module, "MIN_PACKED", 0)
        add = {"texts": (texts, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING)}
        file = write_metadata(tmp_path_factory.getbasetemp() / "strings.gguf", add)
    found = file.metadata["texts"]
    assert found == texts
    assert [*found] == texts
    assert isinstance(found, list) == any("\0" in text for text in texts)


def test_long_arrays_of_strings_pass_for_lists(tmp_path: Path) -> None:
    texts = [f"é{i}" for i in range(300)]
    add = {"long": (texts, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING)}
    metadata = write_metadata(tmp_path / "m.gguf", add).metadata
    found = metadata["long"]
    assert found.packed == ("\0" + "\0".join(texts) + "\0").encode()
    assert (len(found), found[-1], found[2:4]) == (300, "é299", ["é2", "é3"])
    assert found == texts
    assert found not in (texts[:-1], "é")
    assert require(metadata, "long", list) == texts
    with pytest.raises(DamagedFile, match="'long' should be text but is a list of texts"):
        require(metadata, "long", str)


def test_a_large_vocabulary_reads_fast(tmp_path: Path) -> None:
    tokens = [f"token{i}" if i % 4 else "Größe" * (i % 7) + str(i) for i in range(150_000)]
    add = {"tokens": (tokens, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING)}
    write_metadata(tmp_path / "m.gguf", add)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        file = GGUFFile.open(tmp_path / "m.gguf")
        seconds.append(time.process_time() - started)
    assert file.metadata["tokens"] == tokens
    assert within(min(seconds), 0.3)  # 0.05 where this was written; one by one takes 0.1


def test_tensors_of_every_format_are_views_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "test")
    written = {name: random_blocks(name, 3, 512, seed) for seed, name in enumerate(FORMATS)}
    for name, data in written.items():
        writer.add_tensor(name, data, raw_dtype=Kind[name])
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    writer.add_tensor("experts", random_blocks("Q4_0", 6, 64, 9).reshape(2, 3, -1), raw_dtype=Kind.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile.open(path)
    assert file.paths == [path]
    assert file.n_bytes == path.stat().st_size
    for name, data in written.items():
        tensor = file.tensors[name]
        assert (tensor.name, tensor.format, tensor.shape) == (name, FORMATS[name], (3, 512))
        np.testing.assert_array_equal(tensor.data, data)
        assert not tensor.data.flags.owndata
        assert not tensor.data.flags.writeable
        assert tensor.n_bytes == data.size
    assert file.tensors["vector"].shape == (5,)
    assert file.tensors["vector"].data.shape == (1, 20)
    assert file.tensors["experts"].shape == (2, 3, 64)
    assert file.tensors["experts"].data.shape == (6, 36)


def test_metadata_only(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((tmp_path / "m.gguf").read_bytes()[:400])  # no tensor data, as after a short download
    file = GGUFFile.open(cut, tensors=False)
    assert file.metadata["test.text"] == "größer"
    assert file.tensors == {}


def test_version_2(tmp_path: Path) -> None:
    tensors = write(tmp_path / "m.gguf")
    raw = bytearray((tmp_path / "m.gguf").read_bytes())
    raw[4] = 2
    (tmp_path / "m.gguf").write_bytes(raw)
    assert_holds(GGUFFile.open(tmp_path / "m.gguf"), tensors)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_custom_alignment(alignment)
    tensors = {"a": np.arange(3, dtype=np.float32), "b": np.arange(6, dtype=np.float32)}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_holds(GGUFFile.open(path), tensors)


def test_a_string_as_path_and_a_missing_file(tmp_path: Path) -> None:
    tensors = write(tmp_path / "m.gguf")
    assert_holds(GGUFFile.open(str(tmp_path / "m.gguf")), tensors)
    with pytest.raises(FileNotFoundError):
        GGUFFile.open(tmp_path / "none.gguf")
    with pytest.raises(FileNotFoundError):
        GGUFFile.open(tmp_path / "none-00002-of-00003.gguf")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_released_pages_leave_memory_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "test")
    big = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)
    writer.add_tensor("small", np.ones(8, np.float32))
    writer.add_tensor("big", big)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    def resident() -> int:
        maps = Path("/proc/self/smaps").read_text().split("VmFlags")
        mine = [entry for entry in maps if os.fspath(path) in entry]
        return sum(int(entry.split("Rss:")[1].split()[0]) for entry in mine) * 1024

    file = GGUFFile.open(path)
    tensor = file.tensors["big"]
    np.testing.assert_array_equal(tensor.dequantize(), big)
    before = resident()
    assert before > big.nbytes * 0.9
    file.release(tensor)
    assert resident() < before - big.nbytes * 0.9
    np.testing.assert_array_equal(tensor.dequantize(), big)
    file.release(file.tensors["small"])


def test_releasing_what_is_not_in_the_file_does_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf")
    tensors = write(tmp_path / "b.gguf")
    a, b = GGUFFile.open(tmp_path / "a.gguf"), GGUFFile.open(tmp_path / "b.gguf")
    a.release(b.tensors["t4"])
    assert_holds(b, tensors)


TYPED = {
    "n": 3,
    "x": 0.5,
    "b": True,
    "s": "text",
    "texts": ["a", "b"],
    "none": [],
    "nested": [["a"]],
    "ids": np.arange(3, dtype=np.uint32),
    "bytes": np.arange(3, dtype=np.uint8),
    "scores": np.zeros(3, np.float32),
}


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("n", int, 3),
        ("x", float, 0.5),
        ("n", float, 3.0),
        ("b", bool, True),
        ("s", str, "text"),
        ("texts", list, ["a", "b"]),
        ("none", list, []),
    ],
)
def test_require_the_right_type(key: str, kind: type, value: object) -> None:
    found = require(TYPED, key, kind)
    assert found == value
    assert type(found) is kind


@pytest.mark.parametrize(
    ("key", "kind", "message"),
    [
        ("x", int, "metadata 'x' should be a whole number but is a number"),
        ("b", int, "metadata 'b' should be a whole number but is true or false"),
        ("b", float, "metadata 'b' should be a number but is true or false"),
        ("n", str, "metadata 'n' should be text but is a whole number"),
        ("s", list, "metadata 's' should be a list of texts but is text"),
        ("nested", list, "metadata 'nested' should be a list of texts but is a nested array"),
        ("ids", int, "metadata 'ids' should be a whole number but is an array of uint32"),
        ("gone", int, "metadata has no 'gone'"),
    ],
)
def test_require_refuses_the_wrong_type(key: str, kind: type, message: str) -> None:
    with pytest.raises(DamagedFile) as error:
        require(TYPED, key, kind)
    assert str(error.value) == message


def test_require_array() -> None:
    assert require_array(TYPED, "ids", np.integer) is TYPED["ids"]
    assert require_array(TYPED, "scores", np.floating) is TYPED["scores"]
    message = "metadata 'bytes' should be an array of floating point numbers but is an array of uint8"
    with pytest.raises(DamagedFile, match=message):
        require_array(TYPED, "bytes", np.floating)
    with pytest.raises(DamagedFile, match="metadata 'texts' should be an array of whole numbers"):
        require_array(TYPED, "texts", np.integer)


def test_require_with_a_default() -> None:
    assert require(TYPED, "gone", int, 7) == 7
    assert require(TYPED, "gone", str, None) is None
    assert require_array(TYPED, "gone", np.integer, None) is None
    with pytest.raises(DamagedFile):
        require(TYPED, "s", int, 7)


def bare(tensors: list[tuple[list[int], int, int]], keys: bytes = b"", n_keys: int = 0) -> bytes:
    """A header byte by byte; tensors t0, t1 … by their dimensions, type and offset."""
    records = b"".join(
        pack("<Q2s", 2, f"t{i}".encode()) + pack(f"<I{len(d)}QIQ", len(d), *d, kind, offset)
        for i, (d, kind, offset) in enumerate(tensors)
    )
    return b"GGUF" + pack("<IQQ", 3, len(tensors), n_keys) + keys + records


def refusal(path: Path, raw: bytes) -> str:
    path.write_bytes(raw)
    with pytest.raises(DamagedFile) as error:
        GGUFFile.open(path)
    return str(error.value)


def test_the_shortest_keys_fill_a_file(tmp_path: Path) -> None:
    """A key takes 14 bytes at least: a file of nothing else is sound, one of a byte less cannot be."""
    path = tmp_path / "m.gguf"
    keys = b"".join(pack("<QcIB", 1, letter, 7, 1) for letter in (b"a", b"b", b"c"))
    raw = bare([], keys, 3)
    assert len(raw) == 24 + 3 * 14
    path.write_bytes(raw)
    assert GGUFFile.open(path).metadata == {"a": True, "b": True, "c": True}
    message = "m.gguf: claims 3 metadata keys, more than the file can hold"
    assert refusal(path, raw[:-1]) == message


def test_a_tensor_takes_33_bytes_at_least(tmp_path: Path) -> None:
    """Of header: 32 bytes behind the number of tensors are too few for one, 33 are looked at."""
    raw = b"GGUF" + pack("<IQQ", 3, 1, 0) + bytes(25)
    message = "m.gguf: claims 1 tensors, more than the file can hold"
    assert refusal(tmp_path / "m.gguf", raw[:-1]) == message
    assert "name of tensor 1 of 1 is 0 bytes long" in refusal(tmp_path / "m.gguf", raw)


@pytest.mark.parametrize(
    "kind", [kind for kind in Kind if kind.name not in FORMATS], ids=lambda kind: kind.name
)
def test_types_that_are_not_read_have_gguf_s_names(kind: Kind, tmp_path: Path) -> None:
    message = f"tensor 't0' has type {kind.value} ({kind.name}); supported are F32, "
    assert message in refusal(tmp_path / "m.gguf", bare([([256], kind, 0)]))


def test_the_width_of_a_matrix_is_its_last_dimension(tmp_path: Path) -> None:
    message = refusal(tmp_path / "m.gguf", bare([([576, 512], Kind.Q4_K, 0)]))
    assert message == "m.gguf: tensor 't0' is Q4_K with rows of 576, no multiple of 256"


def test_four_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    values = np.arange(2 * 3 * 5 * 7, dtype=np.float32)
    head = bare([([7, 5, 3, 2], Kind.F32, 0)])
    path.write_bytes(head + bytes(-len(head) % 32) + values.tobytes())
    tensor = GGUFFile.open(path).tensors["t0"]
    assert (tensor.shape, tensor.data.shape, tensor.n_bytes) == ((2, 3, 5, 7), (30, 28), 840)
    np.testing.assert_array_equal(tensor.dequantize(), values.reshape(2, 3, 5, 7))


@pytest.mark.parametrize(("gap", "refused"), [(0, True), (4, False), (15, False), (16, True), (17, False)])
def test_a_second_file_behind_the_data(gap: int, refused: bool, tmp_path: Path) -> None:
    """It may follow at once, or behind the padding of 16 bytes."""
    path = tmp_path / "m.gguf"
    head = bare([([4], Kind.F32, 0)])
    raw = head + bytes(-len(head) % 32 + 16 + gap) + b"GGUF"
    if refused:
        assert "a second GGUF file follows its data" in refusal(path, raw)
    else:
        path.write_bytes(raw)
        assert list(GGUFFile.open(path).tensors) == ["t0"]


@pytest.mark.parametrize("kind", [gguf.GGUFValueType.UINT8, gguf.GGUFValueType.UINT64])
def test_alignment_must_be_a_uint32(kind: gguf.GGUFValueType, tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match=r"general\.alignment is not a uint32"):
        write_metadata(tmp_path / "m.gguf", {"general.alignment": (32, kind)})


def test_the_types_of_keys(tmp_path: Path) -> None:
    value = gguf.GGUFValueType
    file = write_metadata(tmp_path / "m.gguf", {"n": (3, value.UINT16), "l": ([1], value.ARRAY, value.INT8)})
    assert file.types == {"general.architecture": 8, "n": 2, "l": 9}


def test_texts_that_are_not_utf_8_stay_bytes(tmp_path: Path) -> None:
    """Whoever needs one finds that it is no text; nobody else is stopped by it."""

    def text(raw: bytes) -> bytes:
        return pack("<Q", len(raw)) + raw

    many = [b"ab"] * 300 + [b"\xc3", b"\xa9"]  # together a character
    keys = text(b"a") + pack("<I", 8) + text(b"J\xfcrgen")
    keys += text(b"b") + pack("<IIQ", 9, 8, 3) + text(b"x") + text(b"\xff") + text("é".encode())
    keys += text(b"c") + pack("<IIQ", 9, 8, len(many)) + b"".join(map(text, many))
    path = tmp_path / "m.gguf"
    path.write_bytes(bare([], keys, 3))
    read = GGUFFile.open(path).metadata
    assert read == {"a": b"J\xfcrgen", "b": ["x", b"\xff", "é"], "c": ["ab"] * 300 + [b"\xc3", b"\xa9"]}
    with pytest.raises(DamagedFile, match="'a' should be text but is bytes that are not UTF-8"):
        require(read, "a", str)
    with pytest.raises(DamagedFile, match="'b' should be a list of texts but is bytes that are not UTF-8"):
        require(read, "b", list)
