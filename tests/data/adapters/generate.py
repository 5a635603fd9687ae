#!/usr/bin/env python3
"""Make the adapter fixtures: tiny random LoRA adapters, and what PEFT computes with them in float32.

    python generate.py CONFORMANCE OUT [--only NAME …]

CONFORMANCE is a folder with the unpacked models of tests/data/conformance. Each folder of OUT is an adapter
as PEFT saves it, with `expected.npz`: `ids` [24], `rows` [4], `logits` float32 [4, vocab] after the ids at
`rows`, and `effect`, the mean absolute difference that the adapter makes to them. Of a control vector there
is `expected.npz` only, with the directions.

Needs torch, transformers 5, and peft.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
torch.set_grad_enabled(False)
ROWS = np.array([0, 7, 16, 23])

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {  # adapter → model, LoraConfig
    "llama": ("llama", {"r": 4, "lora_alpha": 8, "target_modules": ALL}),
    "llama-rslora": (
        "llama",
        {
            "r": 3,
            "lora_alpha": 4,
            "use_rslora": True,
            "target_modules": ["q_proj", "v_proj", "lm_head"],
            "layers_to_transform": [1],
        },
    ),
    "llama-gqa": ("llama-gqa", {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj", "k_proj", "v_proj"]}),
    "qwen2": (
        "qwen2",
        {
            "r": 4,
            "lora_alpha": 6,
            "target_modules": r".*layers\.\d+\.self_attn\.[qkv]_proj",
            "rank_pattern": {"k_proj": 2},
            "alpha_pattern": {r"layers\.1\.self_attn\.q_proj": 16, "v_proj": 3},
            "lora_bias": True,
        },
    ),
    "phi3-partial": (
        "phi3-partial",
        {"r": 4, "lora_alpha": 8, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]},
    ),
    "gpt2": (
        "gpt2-original",
        {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    ),
    "gemma3": ("gemma3", {"r": 2, "lora_alpha": 4, "target_modules": [*ALL, "embed_tokens"]}),
    "qwen3-next": (
        "qwen3-next",
        {"r": 2, "lora_alpha": 4, "target_modules": ["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj"]},
    ),
    "qwen3.5": (
        "qwen3.5",
        {
            "r": 2,
            "lora_alpha": 4,
            "target_modules": ["in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"],
        },
    ),
    "deepseek-v2": (
        "deepseek-v2",
        {"r": 2, "lora_alpha": 4, "target_modules": ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]},
    ),
    "qwen3-moe": (
        "qwen3-moe",
        {
            "r": 2,
            "lora_alpha": 4,
            "target_modules": ["q_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        },
    ),
    "llama-saved": (
        "llama",
        {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ),
    "gpt-oss": (
        "gpt-oss",
        {
            "r": 2,
            "lora_alpha": 4,
            "target_modules": ["q_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        },
    ),
}


# An adapter as transformers 4 had it, with a module for each expert; PEFT reads it into today's stacks.
OF_MODULES = {
    "mixtral": ("mixtral", {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "w1", "w2", "w3"]})
}
# Models with a control vector, which hooks add to the outputs of the layers that it has directions for.
CONTROLLED = {"control-gemma3": ("gemma3", (1, 2, 5)), "control-llama": ("llama", (1,))}


def logits_of(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    return model(input_ids=torch.tensor(ids[None].astype(np.int64))).logits[0, ROWS].float().numpy()


def load(folder: Path) -> torch.nn.Module:
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Random factors, in place of the zeros that training begins with."""
    generator = np.random.default_rng(seed)
    for name, value in model.named_parameters():
        if "modules_to_save" in name:
            value.add_(torch.tensor(generator.normal(0, 0.1, value.shape), dtype=torch.float32))
        if "lora_" in name:
            spread = 0.3 if name.endswith("bias") else 1.2 / np.sqrt(value.shape[-1])
            value.copy_(torch.tensor(generator.normal(0, spread, value.shape), dtype=torch.float32))


def make(name: str, conformance: Path, out: Path) -> None:
    base, config = CASES[name]
    ids = np.load(conformance / base / "reference.npz")["input_ids"][:24].astype(np.int32)
    plain = logits_of(load(conformance / base), ids)
    model = get_peft_model(load(conformance / base), LoraConfig(**config))
    randomise(model, len(name))
    expected = logits_of(model.eval(), ids)
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    again = PeftModel.from_pretrained(load(conformance / base), folder).eval()
    assert np.abs(logits_of(again, ids) - expected).max() < 1e-4
    saved = json.loads((folder / "adapter_config.json").read_text())
    saved["base_model_name_or_path"] = base
    (folder / "adapter_config.json").write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n")
    effect = np.abs(expected - plain).mean(axis=-1)
    np.savez(folder / "expected.npz", ids=ids, rows=ROWS, logits=expected, effect=effect)
    print(f"{name}: effect {effect.round(2)}, logits {expected.std():.2f}", flush=True)


def make_of_modules(name: str, conformance: Path, out: Path) -> None:
    base, config = OF_MODULES[name]
    folder, generator = out / name, np.random.default_rng(len(name))
    shutil.rmtree(folder, ignore_errors=True)
    LoraConfig(task_type="CAUSAL_LM", base_model_name_or_path=base, **config).save_pretrained(folder)
    tensors = {}
    for key, value in load_file(conformance / base / "model.safetensors").items():
        module = key.removesuffix(".weight")
        if module.rpartition(".")[2] in config["target_modules"]:
            for part, shape in (("A", (config["r"], value.shape[1])), ("B", (value.shape[0], config["r"]))):
                factor = generator.normal(0, 1.2 / np.sqrt(shape[1]), shape).astype(np.float32)
                tensors[f"base_model.model.{module}.lora_{part}.weight"] = torch.tensor(factor)
    save_file(tensors, folder / "adapter_model.safetensors")
    ids = np.load(conformance / base / "reference.npz")["input_ids"][:24].astype(np.int32)
    plain = logits_of(load(conformance / base), ids)
    expected = logits_of(PeftModel.from_pretrained(load(conformance / base), folder).eval(), ids)
    effect = np.abs(expected - plain).mean(axis=-1)
    np.savez(folder / "expected.npz", ids=ids, rows=ROWS, logits=expected, effect=effect)
    print(f"{name}: effect {effect.round(2)}, logits {expected.std():.2f}", flush=True)


def make_controlled(name: str, conformance: Path, out: Path) -> None:
    base, layers = CONTROLLED[name]
    folder, generator = out / name, np.random.default_rng(len(name))
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.load(conformance / base / "reference.npz")["input_ids"][:24].astype(np.int32)
    model = load(conformance / base)
    plain = logits_of(model, ids)
    directions = {}
    for layer in layers:
        direction = generator.normal(0, 1, model.config.hidden_size).astype(np.float32)
        directions[f"direction.{layer}"] = direction
        add = torch.tensor(direction)
        model.model.layers[layer].register_forward_hook(
            lambda _, __, x, add=add: (x[0] + add, *x[1:]) if isinstance(x, tuple) else x + add
        )
    expected = logits_of(model, ids)
    effect = np.abs(expected - plain).mean(axis=-1)
    np.savez(folder / "expected.npz", ids=ids, rows=ROWS, logits=expected, effect=effect, **directions)
    print(f"{name}: effect {effect.round(2)}, logits {expected.std():.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("conformance", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=[*CASES, *OF_MODULES, *CONTROLLED])
    arguments = parser.parse_args()
    for each in arguments.only:
        maker = make if each in CASES else make_of_modules if each in OF_MODULES else make_controlled
        maker(each, arguments.conformance, arguments.out)
