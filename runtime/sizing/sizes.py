"""What a model takes: its weights at every quantisation, and its KV cache by context and number format.

Read off its files, without loading weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from ...quant.block import BlockFormat
from ...quant.errors import UnsupportedModel
from ...quant.recipes.recipes import RECIPES, plan
from ..config.model_config import ModelConfig
from ..engine.cache import PAGE_SIZE
from ..engine.state import state_bytes
from ..model.convert import open_convertible
from ..model.memory_check import KV_BYTES, cache_bytes_per_token
from ..model.source import Source, open_source
from ..ops import CacheLayer, MoE, Program
from ..program.build import build_program
from ..weights.binding import Weights

CONTEXTS = (512, 2048, 8192, 32768, 131072)  # tokens; those beyond the trained context are left out


@dataclass(frozen=True)
class WeightSize:
    """The weights of a model in the formats of a recipe, or as its files have them (`recipe` is "")."""

    recipe: str
    n_bytes: int
    bits_per_weight: float
    by_format: Mapping[str, int]  # bytes by format, the largest first


@dataclass(frozen=True)
class AttentionGroup:
    """Layers whose attention is of one kind.

    `kind` is MHA (each query head has keys and values of its own), GQA (groups of heads share them), MQA (all
    do) or MLA (one latent vector stands for those of all). `cached` counts the numbers that each layer keeps
    of a token: 0 for a layer that reads the cache of an earlier one.
    """

    kind: str
    layers: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    window: int  # tokens that a row sees; 0: all
    cached: int


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of one model.

    - `n_params`, `n_active`: parameters, and those that one token goes through.
    - `stored`, `recipes`: its weights as they are and at each quantisation; `unplanned` says why there are
      no quantisations, if there are none.
    - `kv_per_token`: bytes of KV cache that a token takes, by number format. `cpu_share`: how many times that
      the CPU takes, which keeps values beside their keys also where they are a part of these.
    - `state_bytes`: of the recurrent state of one sequence, however long it is.
    - `page_tokens`: tokens a page; the cache is taken in whole pages.
    """

    name: str
    context: int  # tokens that the model was trained for; 0: its files do not say
    n_params: int
    n_active: int
    stored: WeightSize
    recipes: tuple[WeightSize, ...]
    unplanned: str
    attention: tuple[AttentionGroup, ...]
    kv_per_token: Mapping[str, float]
    cpu_share: float
    state_bytes: int
    page_tokens: int = PAGE_SIZE

    def cache_bytes(self, context: int, kv_type: str) -> int:
        """Bytes of KV cache for one sequence of `context` tokens, in whole pages."""
        pages = -(-context // self.page_tokens)
        return round(pages * self.page_tokens * self.kv_per_token[kv_type])

    @property
    def contexts(self) -> list[int]:
        """Contexts to tell the cache's size of: some usual ones, and the trained one."""
        trained = self.context or CONTEXTS[-1]
        return [n for n in CONTEXTS if n < trained] + [trained]


def model_sizes(path: Path, name: str) -> ModelSizes:
    """The sizes of the model in a GGUF file or a Hugging Face folder, which messages call `name`.

    Raises FileNotFoundError, DamagedFile or UnsupportedModel (a DamagedFile), TokenizerError.
    """
    source = open_source(path, text=False)
    tensors = {n: t for n, t in source.tensors.items() if n not in source.beside}
    config = source.config
    program = build_program(config, Weights(config, tensors), vectors=bool(config.no_text))
    n_params = sum(prod(tensor.shape) for tensor in source.tensors.values())
    unplanned, recipes = "", tuple[WeightSize, ...]()
    try:
        recipes = _at_every_recipe(path, name)
    except UnsupportedModel as problem:  # runs as it is, but cannot be written as a GGUF file
        unplanned = str(problem)
    layers = program.cache_layers
    beside = [replace(layer, value_dim=None) for layer in layers]
    per_token = {kind: cache_bytes_per_token(layers, kind) for kind in KV_BYTES}
    return ModelSizes(
        name=source.name,
        context=max(0, config.context_length),
        n_params=n_params,
        n_active=n_params - _idle_weights(program),
        stored=_as_stored(source, n_params),
        recipes=recipes,
        unplanned=unplanned,
        attention=attention_groups(config, layers),
        kv_per_token=per_token,
        cpu_share=sum(layer.width for layer in beside) / max(1, sum(layer.width for layer in layers)),
        state_bytes=state_bytes(program.state_layers),
    )


def attention_groups(config: ModelConfig, cache: Sequence[CacheLayer]) -> tuple[AttentionGroup, ...]:
    """The layers with attention by its kind; `cache` are the parts of the KV cache, in order of layers."""
    found: dict[tuple[str, int, int, int, int], list[int]] = {}
    parts = iter(cache)
    for index, layer in enumerate(config.layers):
        if not layer.has_attention:
            continue
        part = next(parts) if layer.kv_from is None else None
        head_dim, kv_heads, _ = config.sizes(layer)
        if config.mla:
            kind, kv_heads, head_dim = "MLA", 1, config.mla.cache_width
        else:
            kind = "MHA" if kv_heads == config.n_heads else "MQA" if kv_heads == 1 else "GQA"
        key = (kind, kv_heads, head_dim, layer.window, part.width if part else 0)
        found.setdefault(key, []).append(index)
    return tuple(
        AttentionGroup(kind, tuple(layers), config.n_heads, kv_heads, head_dim, window, cached)
        for (kind, kv_heads, head_dim, window, cached), layers in found.items()
    )


def _as_stored(source: Source, n_params: int) -> WeightSize:
    return _size("", [(t.format, t.n_bytes) for t in source.tensors.values()], n_params)


def _at_every_recipe(path: Path, name: str) -> tuple[WeightSize, ...]:
    """The sizes of the files that `llm quantize` would write."""
    model = open_convertible(path, name)
    n_params = sum(tensor.n_weights for tensor in model.tensors)
    found = []
    for recipe in RECIPES.values():
        planned = plan(recipe, model.tensors, model.model_shape, keep=model.is_gguf)
        pairs = [(each.format, each.record.n_bytes) for each in planned]
        found.append(_size(recipe.name, pairs, n_params))
    return tuple(found)


def _size(recipe: str, tensors: Iterable[tuple[BlockFormat, int]], n_params: int) -> WeightSize:
    by_format: Counter[str] = Counter()
    for form, n_bytes in tensors:
        by_format[form.name] += n_bytes
    total = by_format.total()
    return WeightSize(recipe, total, 8 * total / max(1, n_params), dict(by_format.most_common()))


def _idle_weights(program: Program) -> int:
    """Weights of experts that a token does not go through."""
    n_weights = 0
    for op in program.ops:
        if isinstance(op, MoE):
            expert = sum(prod(matrices[0].shape) for matrices in (op.gate, op.up, op.down) if matrices)
            n_weights += max(0, len(op.down) - op.experts.width) * expert
    return n_weights
