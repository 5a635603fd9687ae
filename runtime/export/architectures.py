"""GGUF_RULES: what files of single GGUF architectures need beyond what a ModelConfig and its ARCHS row say.

The keys are those that llama.cpp's converter writes and its loader asks for. This is the only place of the
export that knows architectures by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class GGUFRules:
    """The peculiarities of files of one architecture."""

    attention_only_name: str = ""  # `general.architecture` of models without recurrent layers and experts
    moe_name: str = ""  # `general.architecture` of models with experts
    layer_norm_epsilon: bool = False  # `attention.layer_norm_epsilon` is required although norms are RMS
    parallel_residual: bool = False  # has the key `use_parallel_residual`
    zero_window: bool = False  # `attention.sliding_window` is 0 in models without a window
    window_list: bool = False  # always states `attention.sliding_window_pattern`, layer by layer
    window_ignored: bool = False  # llama.cpp does not read `attention.sliding_window`
    zero_experts: bool = False  # `expert_count` is 0 in recurrent models without experts
    experts_have_ffn_width: bool = False  # `expert_feed_forward_length` defaults to `feed_forward_length`
    leading_dense: bool = False  # has the key `leading_dense_block_count`
    moe_step: bool = False  # has the key `interleave_moe_layer_step`
    mrope_sections: tuple[int, ...] = ()  # `rope.dimension_sections` if config.json has none


GGUF_RULES: Mapping[str, GGUFRules] = MappingProxyType(
    {
        "deepseek2": GGUFRules(leading_dense=True),
        "ernie4_5-moe": GGUFRules(leading_dense=True, moe_step=True),
        "exaone4": GGUFRules(window_list=True),
        "gemma3n": GGUFRules(window_list=True),
        "gemma4": GGUFRules(window_list=True),
        "glm4moe": GGUFRules(leading_dense=True),
        "gptneox": GGUFRules(parallel_residual=True),
        "granitehybrid": GGUFRules(attention_only_name="granite", zero_experts=True),
        "lfm2moe": GGUFRules(leading_dense=True),
        "llama": GGUFRules(window_ignored=True, experts_have_ffn_width=True),
        "mistral3": GGUFRules(window_ignored=True),
        "nemotron_h": GGUFRules(moe_name="nemotron_h_moe", layer_norm_epsilon=True),
        "nemotron_h_moe": GGUFRules(layer_norm_epsilon=True),
        "olmo2": GGUFRules(window_list=True),
        "phi3": GGUFRules(zero_window=True),
        "qwen35": GGUFRules(mrope_sections=(11, 11, 10, 0)),
        "qwen35moe": GGUFRules(mrope_sections=(11, 11, 10, 0)),
        "stablelm": GGUFRules(parallel_residual=True),
        "starcoder2": GGUFRules(window_ignored=True),
    }
)


def gguf_rules(architecture: str) -> GGUFRules:
    """The rules of an architecture by its GGUF name; no peculiarities if it has no row."""
    return GGUF_RULES.get(architecture, GGUFRules())
