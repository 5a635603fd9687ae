"""What reading a packing finds: a tensor that several formats can hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ...block import QTensor
from ...formats import FORMATS
from ..lazy_rows import Index, Make, made_tensor

FORMAT_ORDER = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "BF16", "F16", "F32")
_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True)
class Found:
    """A weight (…, outputs, inputs), and the formats that hold its values as they are.

    `blocks` are those of blocks; `floats` gives the others, which is more work to find out. `encode` gives a
    format's rows (`rows.Make`), numbered across all matrices of the weight. `sources` are the bytes of the
    file that they are made of.
    """

    name: str
    shape: tuple[int, ...]
    blocks: tuple[str, ...]
    floats: Callable[[], tuple[str, ...]]
    encode: Callable[[Index, str], np.ndarray]
    sources: tuple[np.ndarray, ...]

    def tensor(self, form: str) -> QTensor:
        def make(index: Index) -> np.ndarray:
            return self.encode(index, form)

        bound: Make = make
        return made_tensor(self.name, FORMATS[form], self.shape, bound, self.sources)


def tensors_of(found: Iterable[Found]) -> dict[str, QTensor]:
    """Each weight in the first format of FORMAT_ORDER that holds it; experts side by side, which kernels want
    alike, in the first that holds them all."""
    families: dict[str, list[Found]] = {}
    for weight in found:
        families.setdefault(_EXPERT.sub(".experts.*.", weight.name), []).append(weight)
    tensors: dict[str, QTensor] = {}
    for family in families.values():
        form = _first_shared([weight.blocks for weight in family])
        form = form or _first_shared([weight.floats() for weight in family])
        tensors |= {weight.name: weight.tensor(form or weight.floats()[0]) for weight in family}
    return tensors


def _first_shared(formats: list[tuple[str, ...]]) -> str | None:
    shared = set.intersection(*map(set, formats))
    return next((name for name in FORMAT_ORDER if name in shared), None)
