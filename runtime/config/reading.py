"""What reading GGUF metadata and reading config.json have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...quant.block import QTensor
from ...quant.errors import DamagedFile, UnsupportedModel
from ..archs import Arch
from ..archs.others import ENCODER, OTHER_ARCHITECTURES, OTHER_TYPES
from .metadata import Metadata, show
from .moe import MoEConfig
from .tensor_names import BARE, TensorNames

MAX_MTP_LAYERS = 1 << 10
BOTH_WAYS = "a model that reads its text in both directions: it makes vectors of a text, and writes none"
MAX_VOCAB = 1 << 24  # tokens; the largest vocabularies have about 2^18


def fields_of_arch(arch: Arch) -> dict[str, Any]:
    """The fields of a ModelConfig that follow from the row of the architecture alone."""
    return {
        "norm": arch.norm,
        "qk_norm": arch.qk_norm,
        "qk_norm_after_rope": arch.qk_norm_after_rope,
        "gated": "ffn_up" not in arch.layer or "ffn_gate" in arch.layer,
        "sinks": "attn_sinks" in arch.layer,
        "output_gate": "attn_q_gate" in arch.layer,
        "learned_positions": arch.learned_positions,
        "value_norm": arch.value_norm,
        "layer_scales": "layer_output_scale" in arch.layer,
    }


def choose_arch(rows: list[Arch], is_moe: bool) -> Arch:
    """Of rows with the same name in files, the one with or without experts, or else the first."""
    return next((row for row in rows if ("ffn_gate_inp" in row.layer) == is_moe), rows[0])


def norms_of(arch: Arch, n_layers: int, tensors: Mapping[str, QTensor], names: TensorNames) -> frozenset[str]:
    """The stems of a layer's norms: those of the row, but an optional norm only if the file has it."""
    absent = {s for s in arch.optional if not _in_any_layer(f"{s}.weight", n_layers, tensors, names)}
    return arch.norms - absent


def biases_of(
    arch: Arch, n_layers: int, tensors: Mapping[str, QTensor], names: TensorNames
) -> frozenset[str]:
    """The stems of tensors with a bias: those of the row, and all matrices for which the file has one.

    A bias of a norm counts only if the row asks for it: an RMS norm with a bias is another function.
    """
    matrices = {stem for stem in arch.layer if not stem.endswith(("norm", "_exps"))} - BARE
    output = {"output"} if "output" in arch.hf_top and names("output.bias") in tensors else set()
    in_file = {s for s in matrices if _in_any_layer(f"{s}.bias", n_layers, tensors, names)}
    return arch.biases | output | in_file


def _in_any_layer(name: str, n_layers: int, tensors: Mapping[str, QTensor], names: TensorNames) -> bool:
    """Whether any layer has this tensor; layers of different kinds have different tensors."""
    return any(names(f"blk.{i}.{name}") in tensors for i in range(n_layers))


def moe_layers(
    n_layers: int, moe: MoEConfig | None, tensors: Mapping[str, QTensor], names: TensorNames
) -> list[bool]:
    """Whether each layer has experts, which is whether the file has its router."""
    if moe is None:
        return [False] * n_layers
    return [names(f"blk.{i}.ffn_gate_inp.weight") in tensors for i in range(n_layers)]


def layer_count(keys: Metadata, key: str, tensors: Mapping[str, QTensor], mtp_layers: int = 0) -> int:
    """The number of layers, without `mtp_layers`.

    Raises DamagedFile if there are more layers than tensors.
    """
    n_layers = keys.integer(key, low=mtp_layers + 1) - mtp_layers
    if n_layers > len(tensors):
        raise DamagedFile(f"{keys.source} claims {n_layers} layers, but there are {len(tensors)} tensors")
    return n_layers


def head_dim_of(keys: Metadata, key: str, hidden: int, heads: int) -> int:
    """The length of a head; without the key it is hidden / heads. Raises DamagedFile."""
    if key not in keys and hidden % heads:
        raise DamagedFile(f"{keys.source}: a width of {hidden} does not divide into {heads} heads")
    return keys.integer(key, hidden // heads)


def vocab_size_of(keys: Metadata, embedding: QTensor | None) -> int:
    """The rows of the embedding table, whatever `vocab_size` says: many files state that of another version.

    Raises DamagedFile for a size that no vocabulary has.
    """
    rows = embedding.shape[0] if embedding else None
    stated = keys.integer("vocab_size", rows, high=MAX_VOCAB)
    return rows or stated


def check_gguf_kind(metadata: Mapping[str, Any], n_tensors: int) -> None:
    """Raise UnsupportedModel for a GGUF file that is something else than a model."""
    kind = metadata.get("general.type")
    if isinstance(kind, str) and kind in OTHER_TYPES:
        raise UnsupportedModel(f"the file is {OTHER_TYPES[kind]}")
    if not n_tensors:
        vocabulary = ": it is a vocabulary without a model (vocab-only)"
        raise UnsupportedModel(
            f"the file has no tensors{vocabulary if 'tokenizer.ggml.tokens' in metadata else ''}"
        )


def unsupported_arch(name: str, supported: Iterable[str]) -> UnsupportedModel:
    """The error for an architecture that is not in `ARCHS`."""
    if name in OTHER_ARCHITECTURES:
        return UnsupportedModel(f"architecture {show(name)}: this is {OTHER_ARCHITECTURES[name]}")
    return UnsupportedModel(
        f"architecture {show(name)} is not supported; supported are {', '.join(dict.fromkeys(supported))}"
    )


def is_causal(keys: Metadata, arch: Arch) -> bool:
    """Whether tokens only see what is in front of them."""
    both = keys.values.get("use_bidirectional_attention") is True  # "vision" is about images only
    return arch.causal and not both and keys.flag("attention.causal", True)


def why_no_text(causal: bool, arch: Arch) -> str:
    """Why a model that is not causal writes no text; "" for one that is."""
    if causal:
        return ""
    return f"{arch.name} is {BOTH_WAYS if arch.causal else ENCODER}"


def embedding_fields(
    keys: Metadata, arch: Arch, tensors: Mapping[str, QTensor], names: TensorNames
) -> dict[str, Any]:
    """The fields of a ModelConfig about token types and the norms at both ends of the model."""
    types = tensors.get(names("token_types.weight")) if "token_types" in arch.hf_top else None
    return {
        "token_types": types.shape[0] if types else 0,
        "embedding_norm": "token_embd_norm" in arch.hf_top,
        "output_norm": "output_norm" in arch.hf_top,
    }


def position_offset(keys: Metadata, arch: Arch) -> int:
    """Rows of the table of positions in front of that of the first token: up to that of padding."""
    return keys.integer("pad_token_id", 1, low=0) + 1 if arch.padded_positions else 0
