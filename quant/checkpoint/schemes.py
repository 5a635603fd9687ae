"""The packing schemes of quantised checkpoints by `quant_method`, each with the reader of its tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..block import QTensor
from ..errors import UnsupportedModel
from .packed import awq, fp4, fp8, gptq, integers, mlx, mxfp4, nf4
from .packed.packed_weight import PackedWeight, unpacked_tensors
from .raw_tensors import RawCheckpoint, RawTensor
from .settings import Settings, short

# Scales of activations and of the KV cache: unused, since kukri does not quantise these the way the file says
_SKIPPED = re.compile(
    r".*\.((q|k|v|kv|input|output|activation|prob)_scale|(input|output|k|v)_zero_point|input_global_scale"
    r"|(gate_up_proj|down_proj)_(input|activation)_scale)"
)
_DENSE = ("dense", "none")


@dataclass(frozen=True)
class Scheme:
    """A way of packing quantised weights; `read` yields all weights of a checkpoint packed that way."""

    title: str  # for people: "GPTQ"
    read: Callable[[RawCheckpoint, Settings], Iterator[PackedWeight]]


def _fp8(raw: RawCheckpoint, settings: Settings) -> Iterator[PackedWeight]:
    block_size = settings.pair("weight_block_size")
    yield from fp8.read(raw, [block_size] if block_size else [])


CT_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
    *_DENSE,
)


def _compressed_tensors(raw: RawCheckpoint, settings: Settings) -> Iterator[PackedWeight]:
    groups = settings.sections("config_groups")
    for part in (settings, *groups):
        part.one_of("format", "dense", CT_FORMATS, "compressed-tensors")
    if sparsity := settings.section("sparsity_config"):
        sparsity.one_of("format", "dense", _DENSE, "compressed-tensors sparsity")
    if (transforms := settings.section("transform_config")) and transforms.values.get("config_groups"):
        raise UnsupportedModel("compressed-tensors with transform_config is not supported; without it is")
    weights = [args for group in groups if (args := group.section("weights")) is not None]
    block_sizes = [pair for args in weights if (pair := args.pair("block_structure")) is not None]
    declared = integers.declared_sizes(groups)
    yield from integers.read_packed(raw, declared)
    yield from integers.read_bytes(raw, declared)
    yield from fp8.read(raw, block_sizes)
    yield from fp4.read(raw)


MODELOPT = ("fp8", "fp8_pb_wo", "fp8_pb_real", "nvfp4", "mixed_precision", "none")


def _modelopt(raw: RawCheckpoint, settings: Settings) -> Iterator[PackedWeight]:
    settings.one_of("quant_algo", "none", MODELOPT, "ModelOpt")
    yield from fp8.read(raw, [(128, 128)])
    yield from fp4.read(raw)


def _bitsandbytes(raw: RawCheckpoint, settings: Settings) -> Iterator[PackedWeight]:
    yield from nf4.read(raw)
    yield from integers.read_llm_int8(raw)


SCHEMES = {
    "gptq": Scheme("GPTQ", gptq.read),
    "awq": Scheme("AWQ", awq.read),
    "compressed-tensors": Scheme("compressed-tensors", _compressed_tensors),
    "fp8": Scheme("FP8", _fp8),
    "fbgemm_fp8": Scheme("FP8", _fp8),
    "modelopt": Scheme("ModelOpt", _modelopt),
    "bitsandbytes": Scheme("bitsandbytes", _bitsandbytes),
    "mxfp4": Scheme("MXFP4", lambda raw, settings: mxfp4.read(raw)),
    "mlx": Scheme("MLX", mlx.read),
}
OTHER_NAMES = {  # other spellings of `quant_method`
    "modelopt_fp4": "modelopt",
    "modelopt_fp8": "modelopt",
    "compressed_tensors": "compressed-tensors",
}


def scheme_of(settings: Settings) -> Scheme:
    """The scheme that a configuration names. Raises UnsupportedModel, listing the known ones, for others."""
    default = "mlx" if "bits" in settings.values else "modelopt" if "quant_algo" in settings.values else ""
    method = settings.text("quant_method", default).lower()
    method = OTHER_NAMES.get(method, method)
    if method not in SCHEMES:
        raise UnsupportedModel(
            f"checkpoints quantised by {short(method)} are not supported; supported are {', '.join(SCHEMES)}"
        )
    return SCHEMES[method]


def unpack(
    stored: Mapping[str, RawTensor], scheme: Scheme, settings: Settings
) -> tuple[dict[str, QTensor], set[str]]:
    """The packed weights under their plain names, and the names of all stored tensors that they replace."""
    raw = RawCheckpoint(stored)
    tensors = unpacked_tensors(scheme.read(raw, settings))
    skipped = {name for name in stored if _SKIPPED.fullmatch(name)}
    return tensors, raw.taken | skipped
