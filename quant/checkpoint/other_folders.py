"""What a folder is that is no checkpoint in safetensors, by the files in it."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from ...untrusted import Limits
from ..errors import DamagedFile
from .json_files import read_object

_ADAPTER_LIMITS = Limits(n_bytes=1 << 20, n_marks=1 << 16)  # of adapter_config.json
_KINDS = (  # pattern of a file's name, and what a folder with it is; the first that matches counts
    ("*.gguf", "holds GGUF files: give one of them ({})"),
    ("pytorch_model*.bin", "holds pickled weights ({}); only safetensors are read"),
    ("consolidated.*", "holds weights in their maker's own layout ({}): take the version for transformers"),
    ("model_index.json", "is a pipeline of several models (diffusers): only language models run"),
    ("*.onnx", "holds an ONNX model ({}): only GGUF and safetensors are read"),
    ("tf_model.h5", "holds weights for TensorFlow ({}): convert them to safetensors"),
    ("flax_model.msgpack", "holds weights for Flax ({}): convert them to safetensors"),
    ("*.npz", "holds weights as NumPy arrays ({}): convert them to safetensors"),
    ("*.bin", "holds pickled weights ({}); only safetensors are read"),
    ("*.pt", "holds pickled weights ({}); only safetensors are read"),
    ("*.pth", "holds pickled weights ({}); only safetensors are read"),
)


def folder_kind(folder: Path) -> str:
    """What a folder without the weights of a model is, with what to do about it; "" if that is not known."""
    names = sorted(path.name for path in folder.iterdir())
    if "adapter_config.json" in names or any(fnmatch(name, "adapter_model.*") for name in names):
        base = _base_model(folder / "adapter_config.json")
        return f"is an adapter (PEFT) of {base}, not a model: give that model, and this folder with --lora"
    for pattern, kind in _KINDS:
        for name in names:
            if fnmatch(name, pattern):
                return kind.format(name)
    return ""


def _base_model(path: Path) -> str:
    """The model that an adapter is of."""
    try:
        base = read_object(path, _ADAPTER_LIMITS, path.parent).get("base_model_name_or_path")
    except (OSError, DamagedFile):
        return "another model"
    return ascii(base[:80]) if isinstance(base, str) and base else "another model"
