"""What a file calls the tensors of a model.

Inside, tensors have GGUF's names, and every projection has one of its own. A file may keep several of
them as one tensor, their rows one after the other; then they have the same name here.
"""

from __future__ import annotations

from collections.abc import Container

from ..archs import Arch

# Without ".weight" or ".bias" at the end in folders
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
_TOGETHER = (  # stems of GGUF tensors → what a file may have instead, all in one
    (("attn_q", "attn_k", "attn_v"), "attn_qkv"),
    (("attn_k_b", "attn_v_b"), "attn_kv_b"),
    (("ssm_mix", "ssm_z"), "ssm_in"),
    (("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps"),
)


class Names:
    """The name in a file of each tensor of an `arch` model; `held` are the names that the file has."""

    def __init__(self, arch: Arch, held: Container[str], from_gguf: bool) -> None:
        self._arch = arch
        self._held = held
        self.from_gguf = from_gguf
        self._layer: dict[str, str] = dict(arch.layer)
        if from_gguf:
            self._layer = {stem: arch.gguf_names.get(stem, stem) for stem in arch.layer}
            for stems, whole in _TOGETHER:
                given = f"blk.0.{whole}.weight" in held and f"blk.0.{stems[-1]}.weight" not in held
                given = given and whole not in self._layer.values()
                if given and set(stems) <= set(self._layer):
                    self._layer |= dict.fromkeys(stems, whole)
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
            bare = stem in BARE
            stem = self._layer[stem]
        stem, dot, number = stem.partition(".")  # "altup_proj.0": of several, which a GGUF file has in one
        if self.from_gguf:
            stem = f"blk.{layer}.{stem}{dot}{number}" if layer else self._arch.gguf_names.get(stem, stem)
            full = f"{stem}.{kind}"  # a few have no such ending in some files
            return stem if kind == "weight" and stem in self._held and full not in self._held else full
        if layer:
            suffix = "" if bare else f".{kind}"
            return f"{self._prefix}{self._arch.hf_layers}.{layer}.{stem}{dot}{number}{suffix}"
        if stem == "output":  # outside of the text model; its prefix is the wrapper's
            wrapper = "language_model." if self._prefix == "language_model.model." else ""
            return f"{wrapper}{self._arch.hf_top[stem]}.{kind}"
        return f"{self._prefix}{self._arch.hf_top[stem]}{dot}{number}.{kind}"

    def layer_prefix(self, i: int) -> str:
        """What the names of layer `i` begin with."""
        return f"blk.{i}." if self.from_gguf else f"{self._prefix}{self._arch.hf_layers}.{i}."
