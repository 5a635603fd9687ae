"""What a file calls the tensors of a model.

Inside, tensors have GGUF's names, and every projection has one of its own. A file may keep several of
them as one tensor, their rows one after the other; then they have the same name here.
"""

from __future__ import annotations

from collections.abc import Container

from .archs import Arch

# Without ".weight" or ".bias" at the end in folders
_BARE = frozenset({"attn_sinks", "exp_probs_b", "ssm_a", "ssm_d", "ssm_dt"})


class Names:
    """The name in a file of each tensor of an `arch` model; `held` are the names that the file has."""

    def __init__(self, arch: Arch, held: Container[str], from_gguf: bool) -> None:
        self._arch = arch
        self._held = held
        self.from_gguf = from_gguf
        self._layer: dict[str, str] = dict(arch.layer)
        if from_gguf:
            self._layer = {stem: arch.gguf_names.get(stem, stem) for stem in arch.layer}
            if "blk.0.attn_qkv.weight" in held and "attn_qkv" not in self._layer.values():
                self._layer |= dict.fromkeys(("attn_q", "attn_k", "attn_v"), "attn_qkv")
            if "ffn_gate" in self._layer and "blk.0.ffn_gate.weight" not in held:
                self._layer["ffn_gate"] = self._layer["ffn_up"]
            return
        table = f"{arch.hf_top['token_embd']}.weight"
        self._prefix = next((p for p in arch.hf_prefixes if p + table in held), arch.hf_prefixes[0])

    def __call__(self, name: str) -> str:
        """The file's name of what is called `name` inside: "blk.0.attn_q.weight"."""
        stem, _, kind = name.rpartition(".")
        layer, bare = "", False
        if stem.startswith("blk."):
            _, layer, stem = stem.split(".")
            bare = stem in _BARE
            stem = self._layer[stem]
        if self.from_gguf:
            stem = f"blk.{layer}.{stem}" if layer else self._arch.gguf_names.get(stem, stem)
            full = f"{stem}.{kind}"  # a few have no such ending in some files
            return stem if kind == "weight" and stem in self._held and full not in self._held else full
        if layer:
            suffix = "" if bare else f".{kind}"
            return f"{self._prefix}{self._arch.hf_layers}.{layer}.{stem}{suffix}"
        if stem == "output":  # outside of the text model; its prefix is the wrapper's
            wrapper = "language_model." if self._prefix == "language_model.model." else ""
            return f"{wrapper}{self._arch.hf_top[stem]}.{kind}"
        return f"{self._prefix}{self._arch.hf_top[stem]}.{kind}"

    def layer_prefix(self, i: int) -> str:
        """What the names of layer `i` begin with."""
        return f"blk.{i}." if self.from_gguf else f"{self._prefix}{self._arch.hf_layers}.{i}."
