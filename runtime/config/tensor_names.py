"""The names of a model's tensors in its file.

Inside kukri tensors have GGUF's names, and every projection has a name of its own. A file may keep several
projections as one fused tensor, their rows one after the other; `TensorNames` then gives all of them the same
name.
"""

from __future__ import annotations

from collections.abc import Container

from ..archs import Arch

# Stems whose Hugging Face names have no ".weight" or ".bias" at the end
BARE = frozenset(
    {
        "attn_sinks",
        "exp_probs_b",
        "layer_output_scale",
        "altup_correct_scale",
        "ffn_gate_inp_scale",
        "ffn_down_exps_scale",
        "ssm_a",
        "ssm_d",
        "ssm_dt",
    }
)
_FUSED = (  # stems → the stem of the fused tensor that a GGUF file may have instead
    (("attn_q", "attn_k", "attn_v"), "attn_qkv"),
    (("attn_k_b", "attn_v_b"), "attn_kv_b"),
    (("ssm_mix", "ssm_z"), "ssm_in"),
    (("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps"),
)


class TensorNames:
    """Maps the inside name of a tensor of an `arch` model to its name in a file with the tensors `stored`."""

    def __init__(self, arch: Arch, stored: Container[str], from_gguf: bool) -> None:
        self._arch = arch
        self._stored = stored
        self.from_gguf = from_gguf
        self._layer: dict[str, str] = dict(arch.layer)  # stems in a layer: inside → in the file
        if from_gguf:
            self._layer = _gguf_layer(arch, stored)
            return
        table = f"{arch.hf_top['token_embd']}.weight"
        self._prefix = next((p for p in arch.hf_prefixes if p + table in stored), arch.hf_prefixes[0])

    def __call__(self, name: str) -> str:
        """The file's name of the tensor called `name` inside: "blk.0.attn_q.weight"."""
        stem, _, kind = name.rpartition(".")
        layer, bare = "", False
        if stem.startswith("blk."):
            _, layer, stem = stem.split(".")
            bare = stem in BARE
            stem = self._layer[stem]
        stem, dot, number = stem.partition(".")  # "altup_proj.0"; a GGUF file has one tensor for all numbers
        if self.from_gguf:
            stem = f"blk.{layer}.{stem}{dot}{number}" if layer else self._arch.gguf_names.get(stem, stem)
            full = f"{stem}.{kind}"  # some files leave ".weight" out
            return stem if kind == "weight" and stem in self._stored and full not in self._stored else full
        if layer:
            suffix = "" if bare else f".{kind}"
            return f"{self._prefix}{self._arch.hf_layers}.{layer}.{stem}{dot}{number}{suffix}"
        if stem == "output":  # outside of the text model; its prefix is the wrapper's
            wrapper = "language_model." if self._prefix == "language_model.model." else ""
            return f"{wrapper}{self._arch.hf_top[stem]}.{kind}"
        return f"{self._prefix}{self._arch.hf_top[stem]}{dot}{number}.{kind}"

    def is_of_head(self, name: str) -> bool:
        """Whether a tensor of a folder is of a head for another task."""
        return name.removeprefix(self._prefix).startswith(self._arch.hf_heads) or name.startswith(
            self._arch.hf_heads
        )

    def layer_prefix(self, i: int) -> str:
        """The beginning of the names of layer `i`'s tensors in the file."""
        return f"blk.{i}." if self.from_gguf else f"{self._prefix}{self._arch.hf_layers}.{i}."


def _gguf_layer(arch: Arch, stored: Container[str]) -> dict[str, str]:
    """The stems of a layer's tensors in a GGUF file, by their inside stems."""
    layer = {stem: arch.gguf_names.get(stem, stem) for stem in arch.layer}
    for stems, fused in _FUSED:
        has_fused = f"blk.0.{fused}.weight" in stored and f"blk.0.{stems[-1]}.weight" not in stored
        has_fused = has_fused and fused not in layer.values()
        if has_fused and set(stems) <= set(layer):
            layer |= dict.fromkeys(stems, fused)
    if "ffn_gate" in layer and "blk.0.ffn_gate.weight" not in stored:
        layer["ffn_gate"] = layer["ffn_up"]
    return layer
