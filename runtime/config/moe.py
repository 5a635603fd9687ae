"""Mixture of experts: what a file says about routing, and where it keeps the experts' matrices.

Sources: Shazeer et al. 2017, "Outrageously Large Neural Networks" (softmax routing); DeepSeek-AI 2024,
"DeepSeek-V3" (sigmoid scores, and a bias that only counts for the choice).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...quant.block import QTensor
from ...quant.checkpoint.lazy_rows import is_lazy
from ...quant.errors import DamagedFile
from ..archs import Arch
from .fields import Fields, UnsupportedModel, show
from .names import Names

MAX_EXPERTS = 1 << 16
PROJECTIONS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_SCORINGS: dict[int, Literal["softmax", "sigmoid"]] = {1: "softmax", 2: "sigmoid"}  # expert_gating_func


@dataclass(frozen=True)
class Experts:
    """The FFN of layers that have several, of which a router chooses `top` for each token."""

    count: int
    top: int
    width: int  # of an expert
    shared_width: int = 0  # of an FFN that all tokens pass besides; 0: there is none
    latent: int = 0  # the width that they read and give, between two projections; 0: the model's
    shared_gate: bool = False  # its output is scaled by a sigmoid of its own
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    choice_bias: bool = False  # added to the scores for the choice, not for the experts' shares
    normalised: bool = True  # the shares of the chosen ones add up to one
    scale: float = 1.0  # of all shares
    groups: int = 1
    top_groups: int = 1  # the choice is among the experts of so many groups
    limit: float = 0.0  # clamped SwiGLU, see ops.MoE; 0: the model's usual activation
    alpha: float = 1.702
    beside_dense: bool = False  # the layer's usual FFN takes part as well, and both have norms of their own

    @property
    def group_best(self) -> int:
        """How many scores a group is chosen by: DeepSeek V2 takes its best, V3 the sum of its best two."""
        return 1 if self.scoring == "softmax" else 2

    def __post_init__(self) -> None:
        if not self.top <= self.count or self.count % self.groups or not self.top_groups <= self.groups:
            raise DamagedFile(
                f"cannot choose {self.top} of {self.count} experts, {self.top_groups} of {self.groups} groups"
            )


def experts_from_gguf(keys: Fields, arch: Arch, held: Mapping[str, QTensor]) -> Experts | None:
    """None for a dense model. Raises DamagedFile; UnsupportedModel for experts that `arch` does not have."""
    count = keys.integer("expert_count", 0, low=0, high=MAX_EXPERTS)
    if not count:
        return None
    _check_supported(arch, "expert_count")
    latent = _latent(keys, arch)
    of_experts = "expert_feed_forward_length" in keys  # else they are as wide as the others
    key = "expert_feed_forward_length" if of_experts else "feed_forward_length"
    width = keys.integer(key, low=int(of_experts), some=True)
    shared = keys.integer("expert_shared_count", 1, low=0) * width
    shared = keys.integer("expert_shared_feed_forward_length", shared, low=0)
    scoring = keys.integer("expert_gating_func", 0, low=0)
    if scoring not in (0, *_SCORINGS):
        raise UnsupportedModel(f"expert_gating_func {scoring} is not supported; supported are 1 and 2")
    return Experts(
        count=count,
        top=keys.integer("expert_used_count"),
        width=width,
        shared_width=shared if "ffn_up_shexp" in arch.layer else 0,
        shared_gate="ffn_gate_inp_shexp" in arch.layer,
        latent=latent,
        scoring=_SCORINGS.get(scoring, arch.scoring),
        choice_bias=_any_layer(held, ".exp_probs_b.bias"),
        normalised=keys.flag("expert_weights_norm", arch.normalised_in_gguf),
        scale=keys.number("expert_weights_scale", 1.0, zero=True) or 1.0,
        groups=keys.integer("expert_group_count", 1),
        top_groups=keys.integer("expert_group_used_count", keys.integer("expert_group_count", 1)),
        limit=arch.swiglu_limit,
        beside_dense=arch.dense_beside_experts,
    )


def experts_from_hf(keys: Fields, arch: Arch, held: Mapping[str, QTensor]) -> Experts | None:
    """None for a dense model. Raises DamagedFile; UnsupportedModel for experts that `arch` does not have."""
    named = next((key for key in EXPERT_COUNTS if key in keys), None)
    count = keys.integer(named, low=0, high=MAX_EXPERTS) if named else 0
    if not named or not count:
        return None
    _check_supported(arch, named)
    latent = _latent(keys, arch)
    width = keys.integer("moe_intermediate_size", keys.integer("intermediate_size", 0, low=0))
    shared = keys.integer("n_shared_experts", keys.integer("moe_num_shared_experts", 0, low=0), low=0) * width
    shared = keys.integer("shared_expert_intermediate_size", shared, low=0)
    bias = arch.layer.get("exp_probs_b")
    scoring = keys.text("scoring_func", arch.scoring)
    if scoring not in ("softmax", "sigmoid"):
        raise UnsupportedModel(f"scoring_func {show(scoring)} is not supported; softmax and sigmoid are")
    grouped = keys.text("topk_method", "noaux_tc") != "greedy"
    return Experts(
        count=count,
        top=keys.integer("num_experts_per_tok"),
        width=width,
        shared_width=shared if "ffn_up_shexp" in arch.layer else 0,
        shared_gate="ffn_gate_inp_shexp" in arch.layer,
        latent=latent,
        scoring="sigmoid" if scoring == "sigmoid" else "softmax",
        choice_bias=bias is not None and _any_layer(held, f".{bias}"),
        normalised=keys.flag("norm_topk_prob", True),
        scale=keys.number("routed_scaling_factor", 1.0),
        groups=keys.integer("n_group", 1) if grouped else 1,
        top_groups=keys.integer("topk_group", keys.integer("n_group", 1)) if grouped else 1,
        limit=keys.number("swiglu_limit", arch.swiglu_limit, zero=True),
        alpha=keys.number("swiglu_alpha", 1.702),
        beside_dense=arch.dense_beside_experts,
    )


def _latent(keys: Fields, arch: Arch) -> int:
    latent = keys.integer("moe_latent_size", 0, low=0)
    if latent and "ffn_latent_down" not in arch.layer:
        raise UnsupportedModel(f"{arch.name} with moe_latent_size is not supported; without it is")
    return latent


def _check_supported(arch: Arch, key: str) -> None:
    if "ffn_gate_inp" not in arch.layer:
        raise UnsupportedModel(f"{arch.name} with experts ({key}) is not supported; dense models are")


def _any_layer(held: Mapping[str, QTensor], ending: str) -> bool:
    return any(name.endswith(ending) for name in held)


class ExpertTensors:
    """The experts of one layer: `matrices` and, if there are any, float32 `biases` by projection.

    `matrices[stem]` are the (outputs, inputs) of each expert; views of the file where its layout allows
    it. `used` are the names of the tensors in the file. Raises DamagedFile.
    """

    def __init__(
        self, layer: int, experts: Experts, hidden: int, arch: Arch, names: Names, held: Mapping[str, QTensor]
    ) -> None:
        self.matrices: dict[str, tuple[QTensor, ...]] = {}
        self.biases: dict[str, np.ndarray] = {}
        self.used: set[str] = set()
        self._held = held
        stems = [stem for stem in PROJECTIONS if stem in arch.layer]
        for stem in stems:
            down = stem == "ffn_down_exps"
            shape = (hidden, experts.width) if down else (experts.width, hidden)
            name = names(f"blk.{layer}.{stem}.weight")
            if "{}" in name and (stacked := _stacked_name(name, down)) not in held:
                each = [self._take(name.format(e), shape) for e in range(experts.count)]
                self.matrices[stem] = tuple(each)
                continue
            if names.from_gguf:
                whole, bias = name, names(f"blk.{layer}.{stem}.bias")
                both = {names(f"blk.{layer}.{s}.weight") for s in stems if s != "ffn_down_exps"}
                fused = not down and "ffn_gate_exps" in stems and len(both) == 1
                part, of = int(fused and stem == "ffn_up_exps"), 2 if fused else 1
            else:
                whole = stacked if "{}" in name else name if name in held else name.removesuffix(".weight")
                bias, part, of = f"{whole}_bias", int(stem == "ffn_up_exps"), 1 if down else 2
            alternating = arch.hf_experts_transposed and not names.from_gguf
            self.matrices[stem] = self._stack(whole, experts.count, shape, part, of, alternating)
            if bias in held:
                values = self._take(bias, (experts.count, of * shape[0])).dequantize()
                width = shape[0]
                self.biases[stem] = (
                    values[:, part::of] if alternating else values[:, part * width :][:, :width]
                )

    def _take(self, name: str, shape: tuple[int, ...]) -> QTensor:
        if name not in self._held:
            raise DamagedFile(f"tensor {name} is missing")
        if (got := self._held[name].shape) != shape:
            raise DamagedFile(f"tensor {name} has shape {got}, but the model needs {shape}")
        self.used.add(name)
        return self._held[name]

    def _stack(
        self, name: str, count: int, shape: tuple[int, int], part: int, of: int, alternating: bool
    ) -> tuple[QTensor, ...]:
        """Part `part` of `of` of each expert in [count, of · outputs, inputs]; with `alternating` of
        [count, inputs, of · outputs], in which the parts take turns; packed files have the former shape."""
        rows, width = shape
        packed = name in self._held and is_lazy(self._held[name])
        if alternating and not packed:
            whole = self._take(name, (count, width, of * rows))
            values = whole.data.reshape(count, width, rows, of, -1)[:, :, :, part].swapaxes(1, 2)
            data = np.ascontiguousarray(values).reshape(count, rows, -1)
            return tuple(replace(whole, shape=shape, data=data[e]) for e in range(count))
        whole = self._take(name, (count, of * rows, width))
        first, step = (part, of) if alternating else (part * rows, 1)
        starts = [e * of * rows + first for e in range(count)]
        return tuple(
            replace(whole, shape=shape, data=whole.data[start : start + (rows - 1) * step + 1 : step])
            for start in starts
        )


def _stacked_name(name: str, down: bool) -> str:
    """What one tensor for all experts is called where `name` is the pattern of one for each."""
    return f"{name.partition('.{}')[0]}.{'down_proj' if down else 'gate_up_proj'}"
