"""Mixture of experts: what a file says about experts and routing.

Sources: Shazeer et al. 2017, "Outrageously Large Neural Networks" (softmax routing); DeepSeek-AI 2024,
"DeepSeek-V3" (sigmoid scores, and a correction bias that counts for the selection only).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...quant.block import QTensor
from ...quant.errors import DamagedFile, UnsupportedModel
from ..archs import Arch
from .metadata import Metadata, show

MAX_EXPERTS = 1 << 16
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_SCORINGS: dict[int, Literal["softmax", "sigmoid"]] = {1: "softmax", 2: "sigmoid"}  # expert_gating_func


@dataclass(frozen=True)
class MoEConfig:
    """A mixture of experts: a router selects `top_k` of `n_experts` FFNs for each token.

    Raises DamagedFile for numbers that do not fit together.
    """

    n_experts: int
    top_k: int
    width: int  # inner width of an expert
    shared_width: int = 0  # inner width of the shared expert, which reads every token; 0: there is none
    latent_width: int = 0  # experts work on a projection of the hidden state to this width; 0: on itself
    shared_gate: bool = False  # the shared expert's output is scaled by a sigmoid gate
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    correction_bias: bool = False  # added to the probabilities for the selection, not for routing weights
    normalised: bool = True  # the routing weights of a token add up to one
    scale: float = 1.0  # of all routing weights
    groups: int = 1  # of experts
    top_groups: int = 1  # experts are selected from this number of groups
    limit: float = 0.0  # clamped SwiGLU, see ops.MoE; 0: the model's activation
    alpha: float = 1.702
    parallel_dense: bool = False  # the layer has a dense FFN in parallel, and both have norms of their own

    @property
    def group_best(self) -> int:
        """The number of scores that rank a group: DeepSeek V2 takes its best, V3 the sum of its best two."""
        return 1 if self.scoring == "softmax" else 2

    def __post_init__(self) -> None:
        if (
            not self.top_k <= self.n_experts
            or self.n_experts % self.groups
            or not self.top_groups <= self.groups
        ):
            raise DamagedFile(
                f"cannot choose {self.top_k} of {self.n_experts} experts, "
                f"{self.top_groups} of {self.groups} groups"
            )


def moe_from_gguf(keys: Metadata, arch: Arch, tensors: Mapping[str, QTensor]) -> MoEConfig | None:
    """The experts of a GGUF file; None for a dense model.

    Raises DamagedFile, or UnsupportedModel for experts in an architecture that has none in `ARCHS`.
    """
    n_experts = keys.integer("expert_count", 0, low=0, high=MAX_EXPERTS)
    if not n_experts:
        return None
    _check_supported(arch, "expert_count")
    latent_width = _latent_width(keys, arch)
    has_width = "expert_feed_forward_length" in keys  # else experts are as wide as a dense FFN
    key = "expert_feed_forward_length" if has_width else "feed_forward_length"
    width = keys.integer(key, low=int(has_width), nonzero=True)
    shared = keys.integer("expert_shared_count", 1, low=0) * width
    shared = keys.integer("expert_shared_feed_forward_length", shared, low=0)
    scoring = keys.integer("expert_gating_func", 0, low=0)
    if scoring not in (0, *_SCORINGS):
        raise UnsupportedModel(f"expert_gating_func {scoring} is not supported; supported are 1 and 2")
    return MoEConfig(
        n_experts=n_experts,
        top_k=keys.integer("expert_used_count"),
        width=width,
        shared_width=shared if "ffn_up_shexp" in arch.layer else 0,
        shared_gate="ffn_gate_inp_shexp" in arch.layer,
        latent_width=latent_width,
        scoring=_SCORINGS.get(scoring, arch.scoring),
        correction_bias=_any_layer(tensors, ".exp_probs_b.bias"),
        normalised=keys.flag("expert_weights_norm", arch.normalised_in_gguf),
        scale=keys.number("expert_weights_scale", 1.0, zero=True) or 1.0,
        groups=keys.integer("expert_group_count", 1),
        top_groups=keys.integer("expert_group_used_count", keys.integer("expert_group_count", 1)),
        limit=arch.swiglu_limit,
        parallel_dense=arch.moe_parallel_dense,
    )


def moe_from_hf(keys: Metadata, arch: Arch, tensors: Mapping[str, QTensor]) -> MoEConfig | None:
    """The experts of a Hugging Face checkpoint; None for a dense model. Raises like `moe_from_gguf`."""
    key = next((key for key in EXPERT_COUNTS if key in keys), None)
    n_experts = keys.integer(key, low=0, high=MAX_EXPERTS) if key else 0
    if not key or not n_experts:
        return None
    _check_supported(arch, key)
    latent_width = _latent_width(keys, arch)
    width = keys.integer("moe_intermediate_size", keys.integer("intermediate_size", 0, low=0))
    shared = keys.integer("n_shared_experts", keys.integer("moe_num_shared_experts", 0, low=0), low=0) * width
    shared = keys.integer("shared_expert_intermediate_size", shared, low=0)
    bias = arch.layer.get("exp_probs_b")
    scoring = keys.text("scoring_func", arch.scoring)
    if scoring not in ("softmax", "sigmoid"):
        raise UnsupportedModel(f"scoring_func {show(scoring)} is not supported; softmax and sigmoid are")
    grouped = keys.text("topk_method", "noaux_tc") != "greedy"
    return MoEConfig(
        n_experts=n_experts,
        top_k=keys.integer("num_experts_per_tok"),
        width=width,
        shared_width=shared if "ffn_up_shexp" in arch.layer else 0,
        shared_gate="ffn_gate_inp_shexp" in arch.layer,
        latent_width=latent_width,
        scoring="sigmoid" if scoring == "sigmoid" else "softmax",
        correction_bias=bias is not None and _any_layer(tensors, f".{bias}"),
        normalised=keys.flag("norm_topk_prob", True),
        scale=keys.number("routed_scaling_factor", 1.0),
        groups=keys.integer("n_group", 1) if grouped else 1,
        top_groups=keys.integer("topk_group", keys.integer("n_group", 1)) if grouped else 1,
        limit=keys.number("swiglu_limit", arch.swiglu_limit, zero=True),
        alpha=keys.number("swiglu_alpha", 1.702),
        parallel_dense=arch.moe_parallel_dense,
    )


def _latent_width(keys: Metadata, arch: Arch) -> int:
    width = keys.integer("moe_latent_size", 0, low=0)
    if width and "ffn_latent_down" not in arch.layer:
        raise UnsupportedModel(f"{arch.name} with moe_latent_size is not supported; without it is")
    return width


def _check_supported(arch: Arch, key: str) -> None:
    if "ffn_gate_inp" not in arch.layer:
        raise UnsupportedModel(f"{arch.name} with experts ({key}) is not supported; dense models are")


def _any_layer(tensors: Mapping[str, QTensor], ending: str) -> bool:
    """Whether a tensor's name ends like this, in any layer."""
    return any(name.endswith(ending) for name in tensors)
