"""Checkpoint folders made to cost as much as they can; see large.py."""

from __future__ import annotations

import json
from pathlib import Path
from struct import pack

from kukri.quant.checkpoint import json_files, safetensors_header

from .large import Cases, json_cases, json_list, json_object, registrar

CASES: Cases = {}
case = registrar(CASES)


def folder_with(folder: Path, **files: bytes) -> Path:
    (folder / "config.json").write_bytes(b"{}")
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    return folder


def config_of(folder: Path, raw: bytes) -> Path:
    return folder_with(folder, **{"config.json": raw})


CASES.update(json_cases("config", json_files.CONFIG_LIMITS, config_of))


@case
def config_of_keys(folder: Path) -> Path:
    n = json_files.CONFIG_LIMITS.n_marks // 2 - 8
    return config_of(folder, b"{" + b",".join(b'"%x":{}' % i for i in range(n)) + b"}")


@case
def config_of_one_text(folder: Path) -> Path:
    long = "\U0001f600" + "x" * (json_files.CONFIG_LIMITS.n_bytes - 64)
    return config_of(folder, json.dumps({"model_type": long}, ensure_ascii=False).encode())


@case
def index_of_many_files(folder: Path) -> Path:
    entries = b",".join(b'"%x":"%x.safetensors"' % (i, i) for i in range(500_000))
    return folder_with(
        folder, **{"model.safetensors.index.json": json_object(b"{" + entries + b"}", "weight_map")}
    )


def safetensors(folder: Path, header: bytes, n_data: int = 0) -> Path:
    with (folder / "model.safetensors").open("wb") as file:
        file.write(pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + n_data)
    return folder_with(folder)


def entries(n: int) -> bytes:
    each = (
        b'"%x":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}' % (i, 4 * i, 4 * i + 4) for i in range(n)
    )
    return b"{" + b",".join(each) + b"}"


@case
def safetensors_of_many_tensors(folder: Path) -> Path:
    n = safetensors_header.MAX_TENSORS
    return safetensors(folder, entries(n), 4 * n)


@case
def safetensors_of_too_many_tensors(folder: Path) -> Path:
    return safetensors(folder, entries(1_000_000), 4_000_000)


@case
def safetensors_of_many_dimensions(folder: Path) -> Path:
    shape = b"1," * (safetensors_header.MAX_MARKS - 100) + b"1"
    return safetensors(folder, b'{"a":{"dtype":"F32","shape":[' + shape + b'],"data_offsets":[0,4]}}', 4)


@case
def safetensors_of_metadata(folder: Path) -> Path:
    n = safetensors_header.MAX_MARKS // 2 - 100
    data = b",".join(b'"%x":"ab"' % i for i in range(n))
    return safetensors(folder, b'{"__metadata__":{' + data + b"}}")


@case
def safetensors_of_empty_lists(folder: Path) -> Path:
    return safetensors(folder, json_object(json_list(b"[],", safetensors_header.MAX_BYTES)))


@case
def safetensors_of_100_megabytes(folder: Path) -> Path:
    return safetensors(folder, json_object(json_list(b"[],", 100_000_000)))


@case
def safetensors_sound_but_for_its_model(folder: Path) -> Path:
    """50,000 tensors of experts with long names."""
    n = 50_000
    form = b'"model.layers.%d.mlp.experts.%d.down_proj.weight":{"dtype":"BF16",'
    form += b'"shape":[2,2],"data_offsets":[%d,%d]}'
    each = (form % (i % 61, i // 61, 8 * i, 8 * i + 8) for i in range(n))
    return safetensors(folder, b"{" + b",".join(each) + b"}", 8 * n)
