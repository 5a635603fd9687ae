"""Rounding by what a model computes: text → second moments of each matrix's inputs → compensated rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from ...cli.console.bounded_io import read_file
from ...cli.eval.text import LONGEST_TEXT
from ...quant.block import QTensor
from ...quant.errors import DamagedFile, NonFinite
from ...quant.recipes.recipes import PlannedTensor
from ...quant.rounding.codebooks import CODEBOOKS
from ...quant.rounding.encode import encode_tensor
from ...quant.rounding.gptq import encode_compensated
from ...quant.rounding.hessian import Hessian, factor
from ..config.from_files import ModelConfig
from ..evaluation.scores import cut_into_windows
from ..model.source import Source
from ..ops import MatMul, MoE, Program
from ..program.build import build_program
from ..weights.binding import Weights
from .hessians import DiagonalHessian, Layer, FullHessian, moments
from .sensitivity import sensitivities

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer

CONTEXT = 512  # tokens a window
DEFAULT_TEXT = "default"
SENSITIVITY_CONTEXT = 128
WINDOWS = 32  # at most, spread over the text
# What files have that the program has not: what it is part of or equal to. The inputs are the same.
_SAME_INPUTS = {"attn_qkv.": "attn_q.", "output.": "token_embd."}


class TextTooShort(ValueError):
    """The calibration text does not fill one window."""


class CalibratedEncoder:
    """An encoder (`quant.recipes.quantize.Encoder`) of a model's matrices.

    Experts are rounded to nearest, with scales searched for by what they read; tensors that nothing is
    known of, such as embeddings that are no output matrix too, without calibration.

    `windows` int32 [n, context]. Tensors must come in the order of `in_order`.
    """

    def __init__(
        self, source: Source, windows: np.ndarray, threads: int, zero_nonfinite: bool = False
    ) -> None:
        weights = Weights(source.config, source.tensors)
        program = build_program(source.config, weights)
        self._stacks = _stacks(source.config, weights)
        names = {id(stack[0]): name for name, stack in self._stacks.items()}
        self._program, self._windows, self._release = program, windows, source.release
        self._layers: Iterator[Layer] = moments(program, names, windows, threads, source.release)
        self._ahead = _multiplied(program, names)
        self._found: dict[str, FullHessian | DiagonalHessian] = {}
        self._factors: dict[tuple[str, ...], Hessian] = {}
        self._threads = threads
        self._zero_nonfinite = zero_nonfinite

    @staticmethod
    def in_order(plan: Sequence[PlannedTensor]) -> list[PlannedTensor]:
        """Tensors in the order in which layers are run, what may be the output matrix last."""

        def place(planned: PlannedTensor) -> tuple[int, int]:
            parts = planned.name.split(".")
            if parts[0] == "blk":
                return 1, int(parts[1])
            return (2, 0) if parts[0] in ("output", "token_embd") else (0, 0)

        return sorted(plan, key=place)

    def sensitivity(self, progress: Callable[[int, int], None]) -> dict[str, float]:
        """What `budget.allocate_bits` asks. `progress` is told how many of how many runs are done."""
        few = self._windows[:: max(1, len(self._windows) // 2)][:2, :SENSITIVITY_CONTEXT]
        with threadpool_limits(1, "blas"):
            found = sensitivities(self._program, self._stacks, few, self._release, progress)
        for other, known in _SAME_INPUTS.items():
            found = {n.replace(known, other): value for n, value in found.items() if known in n} | found
        return found

    def __call__(self, planned: PlannedTensor, start: int, rows: QTensor) -> np.ndarray:
        with threadpool_limits(1, "blas"):  # whole windows and rows side by side are quicker
            return self._encode(planned, start, rows)

    def _encode(self, planned: PlannedTensor, start: int, rows: QTensor) -> np.ndarray:
        form, found = planned.format, None
        if not form.is_float and form.name in CODEBOOKS and planned.tensor.columns is None:
            found = self._find(planned.name)
        if found is None or found.values.shape[-1] != planned.tensor.width:
            return encode_tensor(rows, form, threads=self._threads, zero_nonfinite=self._zero_nonfinite)
        spread = np.diagonal(found.values) if isinstance(found, FullHessian) else found.values
        if not np.isfinite(spread).all():
            raise DamagedFile(f"the model computes NaN or infinity in front of {planned.name}")
        if isinstance(found, DiagonalHessian):
            importance = found.values[start // planned.tensor.matrix_rows]
            return encode_tensor(rows, form, importance, self._threads, self._zero_nonfinite)
        values = rows.dequantize()
        if not np.isfinite(values).all():
            if not self._zero_nonfinite:
                raise NonFinite("a weight is NaN or infinite")
            values[~np.isfinite(values)] = 0
        if found.names not in self._factors:
            self._factors[found.names] = factor(found.values)
        return encode_compensated(values, CODEBOOKS[form.name], self._factors[found.names], self._threads)

    def _find(self, name: str) -> FullHessian | DiagonalHessian | None:
        """What is known of a matrix's inputs; runs the text as far as needed."""
        for other, known in _SAME_INPUTS.items():
            if name not in self._ahead | self._found.keys():
                name = name.replace(other, known)
        while name in self._ahead:
            self._found.clear()  # before the next layer's is made
            self._factors.clear()
            for each in next(self._layers):
                names = each.names if isinstance(each, FullHessian) else (each.name,)
                self._found |= dict.fromkeys(names, each)
                self._ahead -= set(names)
        return self._found.get(name)


def _stacks(config: ModelConfig, weights: Weights) -> dict[str, tuple[QTensor, ...]]:
    """The matrices of each name: one, or one for each expert."""
    stacks: dict[str, tuple[QTensor, ...]] = {}
    stacks |= {name: (tensor,) for name, tensor in weights.bound.items() if len(tensor.shape) == 2}
    for i, layer in enumerate(config.layers):
        if layer.experts and config.experts:
            for stem, stack in weights.experts(i).matrices.items():
                stacks[f"blk.{i}.{stem}.weight"] = stack
    return stacks


def _multiplied(program: Program, names: dict[int, str]) -> set[str]:
    matrices = [op.weight for op in program.ops if isinstance(op, MatMul)]
    stacks = [op for op in program.ops if isinstance(op, MoE)]
    matrices += [each[0] for op in stacks for each in (op.gate, op.up, op.down) if each]
    return {names[id(matrix)] for matrix in matrices if id(matrix) in names}


def calibration_text(named: str) -> str:
    """The contents of the file `named`, or for `default` of the one that ships. Raises OSError, TooLong."""
    shipped = Path(__file__).with_name("calibration.txt")
    path = shipped if named == DEFAULT_TEXT and not Path(named).exists() else Path(named)
    return read_file(path, LONGEST_TEXT).decode("utf-8", errors="replace")


def calibration_windows(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """int32 [n, CONTEXT]: WINDOWS of the text's at most, evenly spread. Raises TextTooShort."""
    bos = tokenizer.bos_id if tokenizer.add_bos else None
    cut = cut_into_windows(tokenizer.encode(text), CONTEXT, bos)
    if not len(cut):
        raise TextTooShort(f"the calibration text has fewer than {CONTEXT} tokens")
    some = np.linspace(0, len(cut) - 1, min(WINDOWS, len(cut))).astype(int)
    return cut[some]
