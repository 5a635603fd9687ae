"""Models as public bug reports have them: sound ones with one thing changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from kukri.quant.formats import FORMATS
from kukri.quant.gguf.reader import GGUFFile
from kukri.quant.gguf.writer import TensorRecord, write_gguf
from kukri.tokenizer.pretokenize.pretokenize import BYTE_SYMBOLS

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)


def changed_gguf(
    source: Path,
    target: Path,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
) -> Path:
    """A copy of a GGUF file with other keys (None: without it) and float32 tensors (None: without it)."""
    file = GGUFFile.open(source)
    metadata = {key: value for key, value in {**file.metadata, **(keys or {})}.items() if value is not None}
    types = {key: kind for key, kind in file.types.items() if key not in (keys or {})}
    values = {name: tensor.dequantize() for name, tensor in file.tensors.items()} | dict(tensors or {})
    kept = {name: value for name, value in values.items() if value is not None}
    records = [TensorRecord(name, value.shape, FORMATS["F32"]) for name, value in kept.items()]
    data = ([np.ascontiguousarray(v, np.float32).reshape(-1).view(np.uint8)] for v in kept.values())
    write_gguf(target, metadata, types, records, data)
    return target


def changed_folder(
    source: Path,
    target: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
) -> Path:
    """A copy of a checkpoint folder with one file of weights, with other keys of config.json and tensors."""
    shutil.copytree(source, target)
    values = load_file(target / "model.safetensors") | dict(tensors or {})
    kept = {name: value for name, value in values.items() if value is not None}
    save_file(kept, target / "model.safetensors")
    stated = json.loads((target / "config.json").read_text()) | dict(config or {})
    (target / "config.json").write_text(json.dumps(stated))
    return target


def add_tokenizer(
    folder: Path, specials: Sequence[str] = ("<pad>", "<s>", "</s>"), size: int = 256, **files: Any
) -> Path:
    """Give a folder a byte-level tokenizer.json of `size` entries, the first of them `specials`, and others
    of its files by their names without ".json". Added tokens have the flags of `added`, if that is given."""
    added = files.pop("added", {})
    letters = [symbol for byte, symbol in enumerate(BYTE_SYMBOLS) if byte not in (0xC0, 0xC1) and byte < 0xF5]
    words = [*specials, *letters][:size]
    merges = ["t h", "h e", "l l", "i n", "a n", "o n", "e r", "o u", "e n", "r e"][: size - len(words)]
    words += [merge.replace(" ", "") for merge in merges]
    content = {
        "added_tokens": [
            {"id": id, "content": name, "special": True, **(added if id > 2 else {})}
            for id, name in enumerate(specials)
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": files.pop("post_processor", None),
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {word: id for id, word in enumerate(words)}, "merges": merges},
    }
    files = {"tokenizer_config": {"bos_token": "<s>", "eos_token": "</s>"}, "tokenizer": content, **files}
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder
