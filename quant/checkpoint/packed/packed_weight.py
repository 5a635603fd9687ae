"""A weight of a quantised checkpoint, and the choice of the format that it is presented in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from ...block import QTensor
from ...formats import FORMATS
from ..lazy_rows import Index, lazy_tensor

FORMAT_ORDER = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "MXFP4",
    "NVFP4",
    "BF16",
    "F16",
    "F32",
)  # preferred first
_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True)
class PackedWeight:
    """A quantised weight of `shape` (…, outputs, inputs), and the formats that hold its values unchanged.

    `block_formats` are the quantised formats among them. `float_formats()` gives the float formats; finding
    those takes longer. `encode` gives rows, numbered across all matrices of the weight, in a format: uint8
    [n, row_bytes]. `sources` are the arrays of the file that it reads, `factors` those of a tensor in NVFP4.
    """

    name: str
    shape: tuple[int, ...]
    block_formats: tuple[str, ...]
    float_formats: Callable[[], tuple[str, ...]]
    encode: Callable[[Index, str], np.ndarray]
    sources: tuple[np.ndarray, ...]
    factors: tuple[float, ...] = ()

    def tensor(self, form: str) -> QTensor:
        """The weight as a tensor of format `form`, whose rows are encoded when they are read."""

        def decode(index: Index) -> np.ndarray:
            return self.encode(index, form)

        tensor = lazy_tensor(self.name, FORMATS[form], self.shape, decode, self.sources)
        return replace(tensor, factors=self.factors) if form == "NVFP4" else tensor


def unpacked_tensors(weights: Iterable[PackedWeight]) -> dict[str, QTensor]:
    """Each weight as a tensor in the first format of FORMAT_ORDER that holds it.

    The same matrix of all experts of a layer has one format, the first that holds all of them, since kernels
    take experts of one format only.
    """
    families: dict[str, list[PackedWeight]] = {}
    for weight in weights:
        families.setdefault(_EXPERT.sub(".experts.*.", weight.name), []).append(weight)
    tensors: dict[str, QTensor] = {}
    for family in families.values():
        form = _first_shared([weight.block_formats for weight in family])
        form = form or _first_shared([weight.float_formats() for weight in family])
        tensors |= {weight.name: weight.tensor(form or weight.float_formats()[0]) for weight in family}
    return tensors


def _first_shared(formats: list[tuple[str, ...]]) -> str | None:
    shared = set.intersection(*map(set, formats))
    return next((name for name in FORMAT_ORDER if name in shared), None)
