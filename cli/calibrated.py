"""Rounding by what a model computes: text → second moments of each matrix's inputs → compensated rounding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..quant.block import QTensor
from ..quant.encode import encode_tensor
from ..quant.errors import NonFinite
from ..quant.gptq import Factor, encode_compensated, factor
from ..quant.grids import GRIDS
from ..quant.recipes import Planned
from ..runtime.calibrate import Moments, moments, tensor_names
from ..runtime.evaluate import cut_into_windows
from ..runtime.ops import MatMul, Program
from ..runtime.program import build_program
from ..runtime.weights import Weights
from .source import open_source

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

CONTEXT = 512  # tokens a window
WINDOWS = 64  # at most, spread over the text
_JOINED = {"attn_qkv": "attn_q"}  # kept as one in some files: the inputs are the same


class TextTooShort(ValueError):
    """The calibration text does not fill one window."""


class Calibrated:
    """An encoder (`quant.quantize.Encoder`) of a model's matrices. Those that nothing is known of are rounded
    without calibration: experts, embeddings that are no output matrix too.

    `windows` int32 [n, context]. Tensors must come in the order of `in_order`.
    """

    def __init__(self, path: Path, windows: np.ndarray, threads: int, zero_nonfinite: bool = False) -> None:
        source = open_source(path, text=False)
        weights = Weights(source.config, source.tensors)
        program = build_program(source.config, weights)
        names = tensor_names(weights.bound)
        if source.config.tied:
            names[id(weights.matrix("token_embd.weight"))] = "token_embd.weight"
        self._layers: Iterator[list[Moments]] = moments(program, names, windows, threads)
        self._ahead = _multiplied(program, names)
        self._weights = weights  # whose tensors' identities are the keys of `names`
        self._found: dict[str, Moments] = {}
        self._latest: tuple[Moments, Factor] | None = None
        self._threads = threads
        self._zero_nonfinite = zero_nonfinite

    def __call__(self, planned: Planned, start: int, rows: QTensor) -> np.ndarray:
        known = None
        if not planned.format.is_float and planned.format.name in GRIDS and planned.tensor.columns is None:
            known = self._factor(planned.name, planned.tensor.width)
        if known is None:
            return encode_tensor(
                rows, planned.format, threads=self._threads, zero_nonfinite=self._zero_nonfinite
            )
        values = rows.dequantize()
        if not np.isfinite(values).all():
            if not self._zero_nonfinite:
                raise NonFinite("a weight is NaN or infinite")
            values[~np.isfinite(values)] = 0
        return encode_compensated(values, GRIDS[planned.format.name], known, self._threads)

    def _factor(self, name: str, width: int) -> Factor | None:
        for joined, first in _JOINED.items():
            name = (
                name
                if name in self._ahead | self._found.keys()
                else name.replace(f".{joined}.", f".{first}.")
            )
        while name in self._ahead:
            self._found.clear()
            self._latest = None
            for each in next(self._layers):
                self._found |= dict.fromkeys(each.names, each)
                self._ahead -= set(each.names)
        found = self._found.get(name)
        if found is None or len(found.values) != width:
            return None
        if self._latest is None or self._latest[0] is not found:
            self._latest = None  # let go of before the next is made
            self._latest = found, factor(found.values)
        return self._latest[1]


def _multiplied(program: Program, names: dict[int, str]) -> set[str]:
    return {names[id(op.weight)] for op in program.ops if isinstance(op, MatMul) and id(op.weight) in names}


def calibration_windows(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """int32 [n, CONTEXT]: WINDOWS of the text's at most, evenly spread. Raises TextTooShort."""
    bos = tokenizer.bos_id if tokenizer.add_bos else None
    cut = cut_into_windows(tokenizer.encode(text), CONTEXT, bos)
    if not len(cut):
        raise TextTooShort(f"the calibration text has fewer than {CONTEXT} tokens")
    some = np.linspace(0, len(cut) - 1, min(WINDOWS, len(cut))).astype(int)
    return cut[some]


def in_order(plan: Sequence[Planned]) -> list[Planned]:
    """Tensors in the order in which layers are run, the output matrix last."""
    tied = all(planned.name != "output.weight" for planned in plan)
    last = "token_embd.weight" if tied else "output.weight"

    def place(planned: Planned) -> tuple[int, int]:
        parts = planned.name.split(".")
        if parts[0] == "blk":
            return 1, int(parts[1])
        return (2, 0) if planned.name == last else (0, 0)

    return sorted(plan, key=place)
