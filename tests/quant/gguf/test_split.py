"""GGUF models in several files."""

import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from kukri.quant.errors import DamagedFile
from kukri.quant.gguf.reader import GGUFFile

TENSORS = {f"t{i}": np.full((2 + i, 32), i, np.float32) for i in range(5)}


def write(path: Path, **options: object) -> None:
    writer = gguf.GGUFWriter(path, "test", **options)
    writer.add_string("test.text", "shared")
    for name, tensor in TENSORS.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    write(tmp_path / "m.gguf", split_max_tensors=2)
    paths = sorted(tmp_path.glob("m-*.gguf"))
    assert [path.name for path in paths] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return paths


def patch_key(path: Path, key: str, old: bytes, new: bytes) -> None:
    """Change the value of a scalar key in place."""
    raw = bytearray(path.read_bytes())
    at = raw.index(key.encode()) + len(key) + 4
    assert raw[at : at + len(old)] == old
    raw[at : at + len(new)] = new
    path.write_bytes(raw)


def only_shard(path: Path, count: int, no: int) -> bytes:
    """Write a file without tensors that says which shard it is."""
    writer = gguf.GGUFWriter(path, "test")
    writer.add_uint16("split.count", count)
    writer.add_uint16("split.no", no)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path.read_bytes()


def refusal(path: Path) -> str:
    with pytest.raises(DamagedFile) as error:
        GGUFFile.open(path)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_shard_opens_the_whole_model(shards: list[Path], opened: int) -> None:
    file = GGUFFile.open(shards[opened])
    assert file.paths == shards
    assert file.n_bytes == sum(path.stat().st_size for path in shards)
    assert file.metadata["test.text"] == "shared"
    assert list(file.tensors) == list(TENSORS)
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(file.tensors[name].dequantize(), tensor)
        file.release(file.tensors[name])


@pytest.mark.skipif(os.name == "nt", reason="links of POSIX")
def test_shards_may_be_links(shards: list[Path], tmp_path: Path) -> None:
    """Other programs keep a model's shards elsewhere, under names of their own."""
    farm, kept = tmp_path / "farm", tmp_path / "kept"
    farm.mkdir()
    kept.mkdir()
    for i, shard in enumerate(shards):
        shard.rename(kept / f"blob-{i}")
        (farm / shard.name).symlink_to(kept / f"blob-{i}")
    assert list(GGUFFile.open(farm / shards[1].name).tensors) == list(TENSORS)


def test_metadata_comes_from_the_first_shard_alone(shards: list[Path]) -> None:
    shards[2].unlink()
    assert GGUFFile.open(shards[1], tensors=False).metadata["test.text"] == "shared"


def test_a_first_shard_without_tensors(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", split_max_tensors=2, small_first_shard=True)
    file = GGUFFile.open(sorted(tmp_path.glob("m-*.gguf"))[-1])
    assert len(file.paths) == 4
    assert list(file.tensors) == list(TENSORS)


def test_a_single_file_may_be_named_as_the_only_shard(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00001.gguf"
    write(path)
    assert list(GGUFFile.open(path).tensors) == list(TENSORS)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_shard_is_named(shards: list[Path], missing: int) -> None:
    shards[missing].unlink()
    for path in shards:
        if path.exists():
            assert f"shard {missing + 1} of 3 is missing: {shards[missing].name}" in refusal(path)


def test_a_shard_under_another_name(shards: list[Path], tmp_path: Path) -> None:
    shutil.copy(shards[0], tmp_path / "all.gguf")
    assert "is a shard of 3; its name must be …-00001-of-00003.gguf" in refusal(tmp_path / "all.gguf")
    shutil.copy(shards[2], shards[1])
    assert f"{shards[1].name}: is shard 3 by its split.no, not 2" in refusal(shards[0])


def test_a_whole_model_named_as_a_shard(shards: list[Path]) -> None:
    write(shards[0])
    assert "is named a shard but has no split.count" in refusal(shards[0])


def test_a_number_beyond_the_count(shards: list[Path], tmp_path: Path) -> None:
    for no in (0, 4):
        path = tmp_path / f"m-0000{no}-of-00003.gguf"
        shutil.copy(shards[0], path)
        assert f"there is no shard {no} of 3" in refusal(path)


@pytest.mark.parametrize("name", ["all.gguf", "m-00001-of-00003.gguf"])
def test_concatenated_shards(shards: list[Path], tmp_path: Path, name: str) -> None:
    raw = b"".join(path.read_bytes() for path in shards)
    (tmp_path / name).write_bytes(raw)
    assert "shards must not be concatenated" in refusal(tmp_path / name)


def test_keys_that_disagree(shards: list[Path]) -> None:
    patch_key(shards[1], "split.count", b"\3\0", b"\4\0")
    assert "its split.count is 4, not 3" in refusal(shards[0])
    patch_key(shards[1], "split.count", b"\4\0", b"\3\0")
    patch_key(shards[0], "split.tensors.count", b"\5\0\0\0", b"\6\0\0\0")
    assert "split.tensors.count is 6, but the shards hold 5 tensors" in refusal(shards[0])


def test_a_tensor_in_two_shards(shards: list[Path]) -> None:
    raw = shards[1].read_bytes()
    shards[1].write_bytes(raw.replace(b"\2\0\0\0\0\0\0\0t2", b"\2\0\0\0\0\0\0\0t1"))
    assert f"{shards[1].name}: tensor 't1' is in an earlier shard too" in refusal(shards[0])


def test_only_the_first_shard_is_opened_for_metadata(shards: list[Path]) -> None:
    for path in shards[1:]:
        path.unlink()
    file = GGUFFile.open(shards[0], tensors=False)
    assert (file.paths, file.n_bytes) == ([shards[0]], shards[0].stat().st_size)
    assert file.types["test.text"] == 8
    assert file.tensors == {}


def test_messages_begin_with_the_file_that_is_wrong(shards: list[Path]) -> None:
    shards[2].unlink()
    first, second, third = (path.name for path in shards)
    assert refusal(shards[1]) == f"{first}: shard 3 of 3 is missing: {third}"
    shards[0].unlink()
    assert refusal(shards[1]) == f"{second}: shard 1 of 3 is missing: {first}"


def test_a_whole_model_named_as_one_of_two(tmp_path: Path) -> None:
    for i in (1, 2):
        write(tmp_path / f"m-0000{i}-of-00002.gguf")
    message = "m-00001-of-00002.gguf: is named a shard but has no split.count"
    assert refusal(tmp_path / "m-00002-of-00002.gguf") == message


@pytest.mark.parametrize("total", [0, 4, 6])
def test_a_total_that_is_not_the_number_of_tensors(shards: list[Path], total: int) -> None:
    patch_key(shards[0], "split.tensors.count", b"\5\0\0\0", bytes([total, 0, 0, 0]))
    message = f"{shards[0].name}: split.tensors.count is {total}, but the shards hold 5 tensors"
    assert refusal(shards[0]) == message


def test_two_shards_of_one_number(shards: list[Path]) -> None:
    patch_key(shards[2], "split.no", b"\2\0", b"\1\0")
    assert refusal(shards[0]) == f"{shards[2].name}: is shard 2 by its split.no, not 3"


@pytest.mark.parametrize(("count", "no"), [(0, 0), (0, 5), (1, 0)])
def test_a_file_that_is_split_into_itself(count: int, no: int, tmp_path: Path) -> None:
    """As the only shard it may have any name; without shards, its number means nothing."""
    raw = only_shard(tmp_path / "m.gguf", count, no)
    assert GGUFFile.open(tmp_path / "m.gguf").metadata["split.count"] == count
    (tmp_path / "m-00001-of-00001.gguf").write_bytes(raw)
    assert GGUFFile.open(tmp_path / "m-00001-of-00001.gguf").paths == [tmp_path / "m-00001-of-00001.gguf"]


def test_an_only_shard_that_is_the_second(tmp_path: Path) -> None:
    only_shard(tmp_path / "m.gguf", 1, 1)
    assert refusal(tmp_path / "m.gguf") == "m.gguf: is shard 2 by its split.no, not 1"
    only_shard(tmp_path / "m.gguf", 2, 0)
    assert refusal(tmp_path / "m.gguf") == "m.gguf: is a shard of 2; its name must be …-00001-of-00002.gguf"


def test_hundreds_of_shards(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "test", split_max_tensors=1)
    for i in range(260):
        writer.add_tensor(f"t{i}", np.full(8, i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile.open(tmp_path / "m-00260-of-00260.gguf")
    assert len(file.paths) == len(file.tensors) == 260
    assert file.paths[258].name == "m-00259-of-00260.gguf"
    assert file.tensors["t258"].dequantize().tolist() == [258.0] * 8
