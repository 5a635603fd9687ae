"""Hugging Face checkpoint folders: config.json and memory-mapped safetensors files.

Tensors are views of the mapped files: the safetensors library's NumPy interface copies, and has no BF16.
All files of a folder are opened by `untrusted`: they are bounded, and no link leads out of the folder.

Source: the safetensors format description; index and file names are those of transformers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..block import QTensor
from ..errors import DamagedFile
from ..formats import FORMATS
from ..gguf.metadata import quoted
from ..mapped_file import MappedFile
from .buffers import is_buffer
from .json_files import CONFIG_LIMITS, INDEX_LIMITS, read_object
from .lazy_rows import sources
from .other_folders import folder_kind
from .raw_tensors import DTYPES, FLOATS, RawTensor
from .safetensors_header import read_header
from .settings import find_settings

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MODELOPT_CONFIG = "hf_quant_config.json"
MAX_FILES = 1000  # with tensors; each stays open
MAX_TENSORS = 1 << 18  # of all files together; the largest models have 200,000
MAX_DIMENSIONS = 8
MAX_NAME = 200  # characters of a shard's file name; file systems refuse longer ones in their own ways


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint folder.

    `config` and `generation_config` (empty if missing) are the parsed JSON files. `tensors` are read-only
    views of the safetensors files `paths`, under the checkpoint's own names and without buffers (buffers.py).
    `n_bytes` is the size of all files. `packing` names the scheme of quantised checkpoints ("GPTQ"), and is
    "" for others; quantised weights have their plain names, "….weight", and are `lazy_rows`, decoded when
    they are read.
    """

    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: dict[str, QTensor]
    paths: list[Path]
    n_bytes: int
    packing: str
    _files: tuple[MappedFile, ...]

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        """Open a folder with config.json and model.safetensors, or its index and shards.

        Raises DamagedFile if anything in the folder is missing or wrong, UnsupportedModel for an unknown
        packing, OSError if the folder or a file cannot be opened.
        """
        folder = Path(folder)
        folder.stat()  # a missing folder is an OSError, a file missing from it a DamagedFile
        if not (folder / CONFIG).exists() and (kind := folder_kind(folder)):
            raise DamagedFile(f"{folder.resolve().name}: {kind}")
        config = _read_config(folder, CONFIG)
        generation_config = _read_config(folder, GENERATION_CONFIG, required=False)
        settings = find_settings(config, _read_config(folder, MODELOPT_CONFIG, required=False))
        indexed = _indexed_tensors(folder)
        files: list[MappedFile] = []
        raw: dict[str, RawTensor] = {}
        for name, expected in indexed.items():
            files.append(MappedFile(folder / name, folder))
            stored = _read_tensors(files[-1])
            for tensor in expected:
                if tensor not in stored and not is_buffer(tensor):
                    raise DamagedFile(f"{name}: has no tensor {quoted(tensor)}, which {INDEX} places there")
            for tensor in stored:
                if tensor in raw:
                    raise DamagedFile(f"{name}: tensor {quoted(tensor)} is in another file too")
            raw |= stored
            if len(raw) > MAX_TENSORS:
                raise DamagedFile(f"{folder.name}: has over {MAX_TENSORS} tensors, which are not read")
        tensors, replaced, packing = dict[str, QTensor](), set[str](), ""
        if settings:
            from .schemes import scheme_of, unpack  # imported only for quantised checkpoints

            scheme = scheme_of(settings)
            packing = scheme.title
            tensors, replaced = unpack(raw, scheme, settings)
        for plain in raw.values():
            if plain.name not in replaced:
                if plain.name in tensors:
                    raise DamagedFile(f"tensor {quoted(plain.name)} is there twice, packed and as it is")
                tensors[plain.name] = _plain(plain)
        return cls(
            config=config,
            generation_config=generation_config,
            tensors=tensors,
            paths=[file.path for file in files],
            n_bytes=sum(file.n_bytes for file in files),
            packing=packing,
            _files=tuple(files),
        )

    def will_read(self) -> None:
        """Advise the kernel that the files are going to be read from front to back."""
        for file in self._files:
            file.will_read()

    def release(self, tensor: QTensor) -> None:
        """Let the kernel drop the tensor's pages; reading the tensor again fetches them from the file."""
        for file in self._files:
            for array in sources(tensor):
                file.release(array)


def float_tensors(file: MappedFile) -> dict[str, QTensor]:
    """The tensors of a single safetensors file by name. Raises DamagedFile, also for one that is no float."""
    return {name: _plain(raw) for name, raw in _read_tensors(file).items()}


def _indexed_tensors(folder: Path) -> dict[str, list[str]]:
    """The safetensors files of a folder, and for each the tensors that the index places there."""
    if (folder / WEIGHTS).exists():
        return {WEIGHTS: []}
    if not (folder / INDEX).exists():
        raise DamagedFile(f"{folder.name}: {folder_kind(folder) or f'has neither {WEIGHTS} nor {INDEX}'}")
    weight_map = read_object(folder / INDEX, INDEX_LIMITS, folder).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DamagedFile(f"{INDEX}: has no weight_map")
    by_file: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or (name not in by_file and not _is_shard(name)):
            raise DamagedFile(f"{INDEX}: tensor {quoted(tensor)} has no safetensors file of this folder")
        by_file.setdefault(name, []).append(tensor)
        if len(by_file) > MAX_FILES:
            raise DamagedFile(f"{INDEX}: names over {MAX_FILES} files")
    for name in by_file:
        if not (folder / name).exists():
            raise DamagedFile(f"{folder.name}: {quoted(name)} is missing, which {INDEX} names")
    return by_file


def _is_shard(name: str) -> bool:
    """Whether an index may name this file: a plain name of the folder."""
    return name.endswith(".safetensors") and len(name) <= MAX_NAME and not set(name) & set("/\\\0")


def _read_tensors(file: MappedFile) -> dict[str, RawTensor]:
    """The tensors of a safetensors file by name, without buffers."""
    header = read_header(file)
    return {
        tensor: _view(file, header.data_start, tensor, entry)
        for tensor, entry in header.entries.items()
        if not is_buffer(tensor)
    }


def tensors_of_file(path: Path, folder: Path) -> dict[str, QTensor]:
    """The tensors of a safetensors file beside the checkpoint, which must lie in `folder`. Errors: `open`."""
    return {name: _plain(raw) for name, raw in _read_tensors(MappedFile(path, folder)).items()}


def _view(file: MappedFile, data_start: int, name: str, record: dict[str, Any]) -> RawTensor:
    """The tensor `name`; `record` is its entry in the header, with offsets from `data_start`."""
    shape = tuple(record["shape"])
    problem = ""
    if record["dtype"] not in DTYPES:
        problem = f"has dtype {record['dtype']}, which is not known"
    elif len(shape) > MAX_DIMENSIONS:
        problem = f"has over {MAX_DIMENSIONS} dimensions"
    elif 0 in shape:
        problem = f"has a dimension of zero: {shape}"
    if problem:
        raise DamagedFile(f"{file.path.name}: tensor {quoted(name)} {problem}")
    start, end = (data_start + offset for offset in record["data_offsets"])
    return RawTensor(name, record["dtype"], shape, file.bytes[start:end])


def _plain(raw: RawTensor) -> QTensor:
    """A stored tensor that no packing uses; only float types are supported."""
    if raw.dtype not in FLOATS:
        raise DamagedFile(
            f"tensor {quoted(raw.name)} has dtype {raw.dtype}; supported are {', '.join(FLOATS)}, "
            "and others only in the packings that config.json names"
        )
    form, rows = FORMATS[raw.dtype], math.prod(raw.shape[:-1])
    return QTensor(raw.name, form, raw.shape, raw.data.reshape(rows, -1))


def _read_config(folder: Path, name: str, required: bool = True) -> dict[str, Any]:
    """A configuration of the folder; {} for one that is not there and need not be."""
    if (folder / name).exists():
        return read_object(folder / name, CONFIG_LIMITS, folder)
    if required:
        raise DamagedFile(f"{folder.name}: has no {name}")
    return {}
