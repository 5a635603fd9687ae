"""Recipes: the format of each tensor of a model, for the quantisation types that have a name.

The mixtures of "q4_k_m" and the like, with their fallbacks and exceptions, are those of llama.cpp's
quantiser, so that a file has the size that people expect of its type.

Source: `llama_tensor_get_type` of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..block import BlockFormat
from ..formats import FORMATS
from ..gguf.gathered import GatheredTensor
from ..gguf.writer import TensorRecord


@dataclass(frozen=True)
class Recipe:
    """A quantisation type: name, format of most matrices, and `general.file_type` of its files."""

    name: str
    format: str
    file_type: int

    @property
    def is_float(self) -> bool:
        return FORMATS[self.format].is_float


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        name: Recipe(name, form, number)
        for name, form, number in (
            ("f32", "F32", 0),
            ("f16", "F16", 1),
            ("bf16", "BF16", 32),
            ("q8_0", "Q8_0", 7),
            ("q4_0", "Q4_0", 2),
            ("q4_1", "Q4_1", 3),
            ("q5_0", "Q5_0", 8),
            ("q5_1", "Q5_1", 9),
            ("q2_k", "Q2_K", 10),
            ("q3_k_s", "Q3_K", 11),
            ("q3_k_m", "Q3_K", 12),
            ("q3_k_l", "Q3_K", 13),
            ("q4_k_s", "Q4_K", 14),
            ("q4_k_m", "Q4_K", 15),
            ("q5_k_s", "Q5_K", 16),
            ("q5_k_m", "Q5_K", 17),
            ("q6_k", "Q6_K", 18),
            ("iq4_nl", "IQ4_NL", 25),
            ("iq4_xs", "IQ4_XS", 30),
            ("mxfp4", "MXFP4", 38),
            ("mxfp4_moe", "MXFP4", 38),
            ("nvfp4", "NVFP4", 39),
        )
    }
)
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "int8": "q8_0",
        "int4": "q4_k_m",
        "q3_k": "q3_k_m",
        "q4_k": "q4_k_m",
        "q5_k": "q5_k_m",
        "fp16": "f16",
        "fp32": "f32",
    }
)
# The format for rows whose width is no multiple of a format's block size
FALLBACKS: Mapping[str, str] = MappingProxyType(
    {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
    | {"NVFP4": "IQ4_NL"}
)
# Parts of the names of matrices that are never quantised: small ones, and those that errors spread from
_UNQUANTISED = (
    *("_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj", "position_embd"),
    *("ssm_conv1d", "shortconv.conv.weight"),
)
# Parts of the names of matrices that readers of GGUF files expect as float32
_FLOAT32 = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd", "ssm_conv1d"),
    *("shortconv.conv.weight", "altup_correct_coef", "altup_predict_coef"),
)
# Matrices whose factor beside their NVFP4 blocks other readers of GGUF files know
_NVFP4_NAMES = re.compile(
    r"\.(attn_(q|k|v|output|qkv|gate)|ffn_(gate|up|down)(_shexp|_exps)?|ssm_(in|out|alpha|beta))\.weight$"
)
# Architectures that llama.cpp's mixtures make an exception of
_70B_ARCHITECTURES = ("llama", "qwen2")
_Q8_OUTPUT_ARCHITECTURES = ("falcon",)


@dataclass(frozen=True)
class ModelShape:
    """The properties of a model that mixtures depend on."""

    architecture: str  # `general.architecture` of the GGUF file
    n_layers: int
    queries_per_kv_head: int  # query heads that share a key-value head; 0: the first layer has no attention
    n_experts: int = 0

    @property
    def is_70b(self) -> bool:
        """Whether this is a 70B model of Llama or Qwen 2, whose values are small beside its queries."""
        return (
            self.architecture in _70B_ARCHITECTURES and self.n_layers == 80 and self.queries_per_kv_head > 1
        )


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor and the format that it is written in; `note` says why if that is not the recipe's."""

    tensor: GatheredTensor
    format: BlockFormat
    note: str = ""

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def record(self) -> TensorRecord:
        return TensorRecord(self.tensor.name, self.tensor.shape, self.format)


def find_recipe(name: str) -> Recipe | None:
    """The recipe of that name or alias, in any case; None if there is none."""
    name = name.lower().replace("-", "_")
    return RECIPES.get(ALIASES.get(name, name))


def is_quantizable(name: str, shape: Sequence[int]) -> bool:
    """Whether recipes quantise a tensor: matrices of weights, but for the `_UNQUANTISED`."""
    return len(shape) > 1 and name.endswith("weight") and not any(part in name for part in _UNQUANTISED)


def float_format(name: str, shape: Sequence[int], source: BlockFormat) -> BlockFormat:
    """The format of a checkpoint's tensor that is not quantised: F32 where readers expect it, else `source`.

    Readers of GGUF files expect float32 of vectors and of the matrices in `_FLOAT32`.
    """
    needs_f32 = len(shape) == 1 or not name.endswith(".weight") or any(part in name for part in _FLOAT32)
    return FORMATS["F32"] if needs_f32 or not source.is_float else source


def plan(
    recipe: Recipe,
    tensors: Sequence[GatheredTensor],
    model: ModelShape,
    importance: bool = False,
    keep: bool = False,
    overrides: Iterable[tuple[str, BlockFormat]] = (),
) -> list[PlannedTensor]:
    """Choose the formats of all `tensors`, which must be in file order.

    - `importance`: whether matrices are going to be calibrated, which some mixtures take into account.
    - `keep`: whether tensors that are not quantised keep their format, as for sources that are GGUF files.
    - `overrides`: regular expressions for names, each with the format that replaces the recipe's.
    """
    mixture = _Mixture(recipe, model, importance, tensors)
    patterns = [(re.compile(pattern), form) for pattern, form in overrides]
    planned = []
    for tensor in tensors:
        name, shape, source = tensor.name, tensor.shape, tensor.format
        if not is_quantizable(name, shape):
            planned.append(PlannedTensor(tensor, source if keep else float_format(name, shape, source)))
            continue
        needs_f32 = (
            not keep and float_format(name, shape, source).name == "F32" and any(p in name for p in _FLOAT32)
        )
        chosen = FORMATS["F32"] if needs_f32 and recipe.is_float else FORMATS[mixture.choose(name, shape)]
        chosen = next((form for pattern, form in patterns if pattern.search(name)), chosen)
        fitting = fitting_format(chosen, shape[-1])
        note = "" if fitting is chosen else f"rows of {shape[-1]} do not divide into blocks of {chosen.name}"
        planned.append(PlannedTensor(tensor, fitting, note))
    return planned


def fitting_format(form: BlockFormat, width: int) -> BlockFormat:
    """`form`, or its fallback if its blocks do not divide rows of `width`, or else F16."""
    if width % form.block_size == 0:
        return form
    fallback = FORMATS[FALLBACKS.get(form.name, form.name)]
    return fallback if width % fallback.block_size == 0 else FORMATS["F16"]


def more_bits(i: int, n: int) -> bool:
    """Whether "_m" mixtures give layer i of n more bits: first and last eighth, every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


class _Mixture:
    """Chooses the format of one matrix after the other; some depend on how many of their kind came before."""

    def __init__(
        self, recipe: Recipe, model: ModelShape, importance: bool, tensors: Sequence[GatheredTensor]
    ) -> None:
        self._recipe = recipe
        self._model = model
        self._importance = importance
        self._tied = all(tensor.name != "output.weight" for tensor in tensors)
        self._n_values = sum(_is_values(tensor.name) for tensor in tensors)
        self._values_seen = 0
        self._downs_seen = 0

    def choose(self, name: str, shape: Sequence[int]) -> str:
        """The recipe's format of a matrix, whether its width fits or not."""
        form, recipe = self._recipe.format, self._recipe.name
        if self._recipe.is_float:
            return form
        embeds = name in ("token_embd.weight", "per_layer_token_embd.weight")
        if name == "output.weight" or (self._tied and embeds):
            return self._head(shape[-1])
        if form == "MXFP4":
            dense = recipe == "mxfp4" and not self._model.n_experts
            return "MXFP4" if (dense and not embeds) or (len(shape) > 2 and shape[0] > 1) else "Q8_0"
        if form == "NVFP4":
            return "NVFP4" if _NVFP4_NAMES.search(name) else "Q8_0"
        if embeds:
            return form
        kinds: tuple[tuple[Callable[[str], bool], Callable[[str], str]], ...] = (
            (_is_values, self._for_values),
            (lambda name: "attn_k.weight" in name, self._for_keys),
            (lambda name: "ffn_down" in name, self._for_down),
            (lambda name: "attn_output.weight" in name, self._for_attention_output),
        )
        return next((choice(name) for matches, choice in kinds if matches(name)), form)

    def _head(self, width: int) -> str:
        form = self._recipe.format
        if (
            form in ("MXFP4", "NVFP4", "Q8_0")
            or width % FORMATS[form].block_size
            or self._model.architecture in _Q8_OUTPUT_ARCHITECTURES
        ):
            return "Q8_0"
        return "Q6_K"

    def _for_values(self, name: str) -> str:
        form, recipe, i = self._recipe.format, self._recipe.name, self._values_seen
        self._values_seen += 1
        small_values = self._model.queries_per_kv_head >= 4
        if recipe == "q2_k":
            form = "Q4_K" if small_values else "Q3_K"
        elif recipe == "q3_k_m":
            form = "Q5_K" if i < 2 else "Q4_K"
        elif recipe == "q3_k_l" or (recipe in ("iq4_nl", "iq4_xs") and small_values):
            form = "Q5_K"
        elif recipe in ("q4_k_m", "q5_k_m") and more_bits(i, self._n_values):
            form = "Q6_K"
        elif recipe == "q4_k_s" and i < 4:
            form = "Q5_K"
        if self._model.is_70b and form in ("Q3_K", "Q4_K"):
            form = "Q5_K"
        return "Q8_0" if self._model.n_experts == 8 else form

    def _for_keys(self, name: str) -> str:
        return "Q8_0" if self._model.n_experts == 8 else self._recipe.format

    def _for_down(self, name: str) -> str:
        form, recipe, n = self._recipe.format, self._recipe.name, self._model.n_layers
        i = int(name.split(".")[1]) if self._model.n_experts > 1 else self._downs_seen
        self._downs_seen += 1
        early = i < n // 8
        choices: dict[str, str | None] = {
            "q2_k": "Q3_K",
            "q3_k_m": "Q5_K" if i < n // 16 else "Q4_K",
            "q3_k_l": "Q5_K",
            "q4_k_m": "Q6_K" if more_bits(i, n) else None,
            "q5_k_m": "Q6_K" if more_bits(i, n) else None,
            "q4_k_s": "Q5_K" if early else None,
            "iq4_nl": "Q5_K" if early and not self._importance else None,
            "iq4_xs": "Q5_K" if early and not self._importance else None,
            "q4_0": "Q4_1" if early and self._importance else None,
            "q5_0": "Q5_1" if early and self._importance else None,
        }
        return choices.get(recipe) or form

    def _for_attention_output(self, name: str) -> str:
        recipe, form = self._recipe.name, self._recipe.format
        if self._model.n_experts == 8:
            small = ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m", "iq4_nl", "iq4_xs")
            return "Q5_K" if recipe in small else form
        return {"q2_k": "Q3_K", "q3_k_m": "Q4_K", "q3_k_l": "Q5_K"}.get(recipe, form)


def _is_values(name: str) -> bool:
    """Whether a matrix projects to values, alone or together with queries and keys."""
    return any(part in name for part in ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"))
