"""Writes attention.npz: the attention weights that transformers computes for the conformance fixtures.

    python generate.py FOLDER   # the fixtures unpacked: a folder for each, with model and reference.npz

Needs torch and transformers (5.x), which the tests do not. For each fixture, the weights
of the layers that have attention, at the positions ROWS of its first N_IDS ids, in float32 with eager
attention: uint16 [layers, heads, rows, ids] in steps of 1/65535.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

N_IDS, ROWS = 40, (0, 5, 21, 39)


def attentions(folder: Path) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ids = np.load(folder / "reference.npz")["input_ids"][:N_IDS].astype(np.int64)
    with torch.no_grad():
        found = model.eval()(torch.from_numpy(ids)[None], output_attentions=True, use_cache=False).attentions
    layers = [each[0, :, list(ROWS)].numpy() for each in found if each is not None]
    return np.round(np.stack(layers) * 65535).astype(np.uint16)


def main() -> None:
    kept = {}
    for folder in sorted(path.parent for path in Path(sys.argv[1]).glob("*/config.json")):
        kept[folder.name] = attentions(folder)
        print(folder.name, kept[folder.name].shape)
    np.savez_compressed(Path(__file__).parent / "attention.npz", **kept)


if __name__ == "__main__":
    main()
