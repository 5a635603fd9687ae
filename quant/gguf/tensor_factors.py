"""The scales that GGUF files keep beside NVFP4 tensors: `QTensor.factors`.

    X.weight        NVFP4
    X.scale         float32 [1], or of stacked experts [experts]: what the weights are multiplied by
    X.input_scale   likewise, for activations in NVFP4, which kukri does not round

Source: llama.cpp's conversion of checkpoints in NVFP4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..block import QTensor
from ..errors import DamagedFile
from ..formats import FORMATS
from .metadata import quoted

LARGEST_FACTOR = 256.0  # kernels multiply factors by powers of two, and float32 has no room for larger ones


def scale_name(name: str) -> str:
    """The name of the tensor with the factors of the tensor `name`."""
    return f"{name.removesuffix('.weight')}.scale"


def usable_factors(values: np.ndarray) -> bool:
    """Whether all factors are numbers from 0 to LARGEST_FACTOR."""
    return bool(((values >= 0) & (values <= LARGEST_FACTOR)).all())


def with_factors(tensors: Mapping[str, QTensor]) -> dict[str, QTensor]:
    """The tensors, those in NVFP4 with the factors that `tensors` has beside them. Raises DamagedFile."""
    out = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.format is not FORMATS["NVFP4"]:
            continue
        out.pop(f"{name.removesuffix('.weight')}.input_scale", None)
        scale = out.pop(scale_name(name), None)
        if scale is None:
            continue
        most = math.prod(tensor.shape[:-2])
        if scale.format is not FORMATS["F32"] or math.prod(scale.shape) not in (1, most):
            raise DamagedFile(
                f"tensor {quoted(scale.name)} is {scale.format.name} {scale.shape}, not {most} scales in F32"
            )
        factors = scale.dequantize().reshape(-1)
        if not usable_factors(factors):
            raise DamagedFile(f"tensor {quoted(scale.name)} has scales that no NVFP4 weight can have")
        out[name] = replace(tensor, factors=tuple(factors.tolist()))
    return out
