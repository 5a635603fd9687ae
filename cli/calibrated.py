"""Rounding by what a model computes: text → second moments of each matrix's inputs → compensated rounding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from ..quant.block import QTensor
from ..quant.encode import encode_tensor
from ..quant.errors import NonFinite
from ..quant.factor import Factor, factor
from ..quant.gptq import encode_compensated
from ..quant.grids import GRIDS
from ..quant.recipes import Planned
from ..runtime.calibrate import ExpertMoments, Layer, Moments, moments, tensor_names
from ..runtime.evaluate import cut_into_windows
from ..runtime.ops import MatMul, MoE, Program
from ..runtime.program import build_program
from ..runtime.weights import Weights
from .source import open_source

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

CONTEXT = 512  # tokens a window
WINDOWS = 32  # at most, spread over the text
_JOINED = {"attn_qkv": "attn_q"}  # kept as one in some files: the inputs are the same


class TextTooShort(ValueError):
    """The calibration text does not fill one window."""


class Calibrated:
    """An encoder (`quant.quantize.Encoder`) of a model's matrices. Experts are rounded to nearest, with scales
    searched for by what they read; tensors that nothing is known of, such as embeddings that are no output
    matrix too, without calibration.

    `windows` int32 [n, context]. Tensors must come in the order of `in_order`.
    """

    def __init__(self, path: Path, windows: np.ndarray, threads: int, zero_nonfinite: bool = False) -> None:
        source = open_source(path, text=False)
        weights = Weights(source.config, source.tensors)
        program = build_program(source.config, weights)
        names = tensor_names(weights.bound)
        if source.config.tied:
            names[id(weights.matrix("token_embd.weight"))] = "token_embd.weight"
        for i, layer in enumerate(source.config.layers):
            if layer.experts and source.config.experts:
                for stem, stack in weights.experts(i).matrices.items():
                    names[id(stack[0])] = f"blk.{i}.{stem}.weight"
        self._layers: Iterator[Layer] = moments(program, names, windows, threads, source.release)
        self._ahead = _multiplied(program, names)
        self._weights = weights  # whose tensors' identities are the keys of `names`
        self._found: dict[str, Moments | ExpertMoments] = {}
        self._factors: dict[tuple[str, ...], Factor] = {}
        self._threads = threads
        self._zero_nonfinite = zero_nonfinite

    def __call__(self, planned: Planned, start: int, rows: QTensor) -> np.ndarray:
        with threadpool_limits(1, "blas"):  # whole windows and rows side by side are quicker
            return self._encode(planned, start, rows)

    def _encode(self, planned: Planned, start: int, rows: QTensor) -> np.ndarray:
        form, found = planned.format, None
        if not form.is_float and form.name in GRIDS and planned.tensor.columns is None:
            found = self._find(planned.name)
        if found is None or found.values.shape[-1] != planned.tensor.width:
            return encode_tensor(rows, form, threads=self._threads, zero_nonfinite=self._zero_nonfinite)
        if isinstance(found, ExpertMoments):
            importance = found.values[start // planned.tensor.matrix_rows]
            return encode_tensor(rows, form, importance, self._threads, self._zero_nonfinite)
        values = rows.dequantize()
        if not np.isfinite(values).all():
            if not self._zero_nonfinite:
                raise NonFinite("a weight is NaN or infinite")
            values[~np.isfinite(values)] = 0
        if found.names not in self._factors:
            self._factors[found.names] = factor(found.values)
        return encode_compensated(values, GRIDS[form.name], self._factors[found.names], self._threads)

    def _find(self, name: str) -> Moments | ExpertMoments | None:
        """What is known of a matrix's inputs; runs the text as far as needed."""
        for joined, first in _JOINED.items():
            if name not in self._ahead | self._found.keys():
                name = name.replace(f".{joined}.", f".{first}.")
        while name in self._ahead:
            self._found.clear()  # before the next layer's is made
            self._factors.clear()
            for each in next(self._layers):
                names = each.names if isinstance(each, Moments) else (each.name,)
                self._found |= dict.fromkeys(names, each)
                self._ahead -= set(names)
        return self._found.get(name)


def _multiplied(program: Program, names: dict[int, str]) -> set[str]:
    matrices = [op.weight for op in program.ops if isinstance(op, MatMul)]
    stacks = [op for op in program.ops if isinstance(op, MoE)]
    matrices += [each[0] for op in stacks for each in (op.gate, op.up, op.down) if each]
    return {names[id(matrix)] for matrix in matrices if id(matrix) in names}


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
