"""Conformance fixtures with a layer for multi-token prediction added to them, of random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

HIDDEN = 64


def with_mtp(fixture: Path, target: Path, seed: int = 0) -> Path:
    """A copy of a fixture at `target` whose MTP layer is like its last layer, as published files have it."""
    shutil.copytree(fixture, target)
    tensors, config = (
        load_file(target / "model.safetensors"),
        json.loads((target / "config.json").read_text()),
    )
    rng = np.random.default_rng(seed)
    last = config["num_hidden_layers"] - 1
    qwen = "qwen" in config["model_type"]
    block = "mtp.layers.0." if qwen else f"model.layers.{last + 1}."

    def normal(shape: tuple[int, ...], scale: float) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    for name in [name for name in tensors if name.startswith(f"model.layers.{last}.")]:
        values = tensors[name]
        noise = normal(values.shape, 0.5 * float(values.std()) + 0.01)
        tensors[block + name.removeprefix(f"model.layers.{last}.")] = values + noise
    center = 0.0 if qwen else 1.0  # of a norm's weights
    own = {"enorm": center + normal((HIDDEN,), 0.2), "hnorm": center + normal((HIDDEN,), 0.2)}
    own |= {"eh_proj": normal((HIDDEN, 2 * HIDDEN), HIDDEN**-0.5)}
    own |= {"shared_head.norm": center + normal((HIDDEN,), 0.2)}
    names = {"enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden", "eh_proj": "mtp.fc"}
    names |= {"shared_head.norm": "mtp.norm"}
    for role, values in own.items():
        tensors[f"{names[role] if qwen else block + role}.weight"] = values
    if not qwen:
        config["num_nextn_predict_layers"] = 1
        tensors[f"{block}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors[f"{block}shared_head.head.weight"] = normal(tensors["lm_head.weight"].shape, 0.2)
    save_file(
        {name: np.ascontiguousarray(values) for name, values in tensors.items()}, target / "model.safetensors"
    )
    (target / "config.json").write_text(json.dumps(config))
    return target
