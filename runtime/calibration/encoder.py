"""Calibrated quantisation: a text gives the Hessian of each matrix's inputs, by which GPTQ rounds the
matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from ... import KukriError
from ...quant.block import QTensor
from ...quant.errors import DamagedFile, NonFinite
from ...quant.recipes.recipes import PlannedTensor
from ...quant.rounding.codebooks import CODEBOOKS
from ...quant.rounding.encode import encode_tensor
from ...quant.rounding.gptq import encode_compensated
from ...quant.rounding.hessian import Hessian, prepare_hessian
from ..config.model_config import ModelConfig
from ..evaluation.scores import cut_into_windows
from ..ops import MatMul, MoE, Program
from ..program.build import build_program
from ..weights.binding import Weights
from .hessians import DiagonalHessian, FullHessian, LayerHessians, layer_hessians
from .sensitivity import sensitivities

CONTEXT = 512  # tokens a window
SENSITIVITY_CONTEXT = 128  # tokens a window when sensitivity is measured
WINDOWS = 32  # at most, spread over the text
# Parts of matrix names that only files have → parts of names in the program with the same inputs
_SAME_INPUTS = {"attn_qkv.": "attn_q.", "output.": "token_embd."}


class TextTooShort(KukriError, ValueError):
    """The calibration text does not fill one window."""


class CalibratedEncoder:
    """An `Encoder` (`quant.recipes.quantize`) that runs the model over a text to calibrate each matrix.

    Matrices are rounded by GPTQ. Experts are rounded to nearest, with scales searched for with the mean
    squares of their inputs as importance. Tensors that multiply nothing, such as embeddings beside an
    output matrix, are encoded without calibration.

    `config` and `tensors` are the model's; `release` is called with each tensor that is not needed any more.
    `windows` is the text, int32 [n, context]. Tensors must be encoded in `execution_order`.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, QTensor],
        release: Callable[[QTensor], None],
        windows: np.ndarray,
        threads: int,
        zero_nonfinite: bool = False,
    ) -> None:
        weights = Weights(config, tensors)
        program = build_program(config, weights)
        self._stacks = _stacks(config, weights)
        names = {id(stack[0]): name for name, stack in self._stacks.items()}
        self._program, self._windows, self._release = program, windows, release
        self._layers: Iterator[LayerHessians] = layer_hessians(program, names, windows, threads, release)
        self._to_come = _multiplied(program, names)  # matrices of layers that have not been run
        self._hessians: dict[str, FullHessian | DiagonalHessian] = {}  # of the last layer run, by matrix name
        self._prepared: dict[tuple[str, ...], Hessian] = {}
        self._threads = threads
        self._zero_nonfinite = zero_nonfinite

    @staticmethod
    def execution_order(plan: Sequence[PlannedTensor]) -> list[PlannedTensor]:
        """The tensors sorted by layer in the order of execution; possible output matrices last."""

        def position(planned: PlannedTensor) -> tuple[int, int]:
            parts = planned.name.split(".")
            if parts[0] == "blk":
                return 1, int(parts[1])
            return (2, 0) if parts[0] in ("output", "token_embd") else (0, 0)

        return sorted(plan, key=position)

    def sensitivity(self, progress: Callable[[int, int], None]) -> dict[str, float]:
        """The sensitivity of each matrix, for `allocate_bits`; `progress` gets (runs done, all runs)."""
        windows = self._windows[:: max(1, len(self._windows) // 2)][:2, :SENSITIVITY_CONTEXT]
        with threadpool_limits(1, "blas"):
            measured = sensitivities(self._program, self._stacks, windows, self._release, progress)
        for in_file, in_program in _SAME_INPUTS.items():
            renamed = {n.replace(in_program, in_file): s for n, s in measured.items() if in_program in n}
            measured = renamed | measured
        return measured

    def __call__(self, planned: PlannedTensor, start: int, rows: QTensor) -> np.ndarray:
        with threadpool_limits(1, "blas"):  # threads of its own, over windows and rows, are faster
            return self._encode(planned, start, rows)

    def _encode(self, planned: PlannedTensor, start: int, rows: QTensor) -> np.ndarray:
        form, hessian = planned.format, None
        if not form.is_float and form.name in CODEBOOKS and planned.tensor.columns is None:
            hessian = self._hessian(planned.name)
        if hessian is None or hessian.values.shape[-1] != planned.tensor.width:
            return encode_tensor(rows, form, threads=self._threads, zero_nonfinite=self._zero_nonfinite)
        diagonal = np.diagonal(hessian.values) if isinstance(hessian, FullHessian) else hessian.values
        if not np.isfinite(diagonal).all():
            raise DamagedFile(f"the model computes NaN or infinity in front of {planned.name}")
        if isinstance(hessian, DiagonalHessian):
            importance = hessian.values[start // planned.tensor.matrix_rows]
            return encode_tensor(rows, form, importance, self._threads, self._zero_nonfinite)
        values = rows.dequantize()
        if not np.isfinite(values).all():
            if not self._zero_nonfinite:
                raise NonFinite("a weight is NaN or infinite")
            values[~np.isfinite(values)] = 0
        if hessian.names not in self._prepared:
            self._prepared[hessian.names] = prepare_hessian(hessian.values)
        return encode_compensated(values, CODEBOOKS[form.name], self._prepared[hessian.names], self._threads)

    def _hessian(self, name: str) -> FullHessian | DiagonalHessian | None:
        """The Hessian of a matrix, None if it multiplies nothing; runs layers until the matrix's is done."""
        for in_file, in_program in _SAME_INPUTS.items():
            if name not in self._to_come | self._hessians.keys():
                name = name.replace(in_file, in_program)
        while name in self._to_come:
            self._hessians.clear()  # frees their memory before the next layer's are made
            self._prepared.clear()
            for hessian in next(self._layers):
                names = hessian.names if isinstance(hessian, FullHessian) else (hessian.name,)
                self._hessians |= dict.fromkeys(names, hessian)
                self._to_come -= set(names)
        return self._hessians.get(name)


def _stacks(config: ModelConfig, weights: Weights) -> dict[str, tuple[QTensor, ...]]:
    """The matrices by name: one, or one for each expert."""
    stacks: dict[str, tuple[QTensor, ...]] = {}
    stacks |= {name: (tensor,) for name, tensor in weights.bound.items() if len(tensor.shape) == 2}
    for i, layer in enumerate(config.layers):
        if layer.is_moe:
            for stem, stack in weights.experts(i).matrices.items():
                stacks[f"blk.{i}.{stem}.weight"] = stack
    return stacks


def _multiplied(program: Program, names: dict[int, str]) -> set[str]:
    """The names of the matrices that the program multiplies; `names` by the `id` of tensors."""
    matrices = [op.weight for op in program.ops if isinstance(op, MatMul)]
    layers = [op for op in program.ops if isinstance(op, MoE)]
    matrices += [stack[0] for op in layers for stack in (op.gate, op.up, op.down) if stack]
    return {names[id(matrix)] for matrix in matrices if id(matrix) in names}


def default_text() -> str:
    """The calibration text that comes with kukri."""
    return Path(__file__).with_name("calibration.txt").read_text("utf-8")


def calibration_windows(ids: Sequence[int], bos: int | None) -> np.ndarray:
    """int32 [n, CONTEXT]: at most WINDOWS windows of a text's token ids, evenly spread over the text.

    Each begins with `bos`, unless it is None. Raises TextTooShort.
    """
    cut = cut_into_windows(ids, CONTEXT, bos)
    if not len(cut):
        raise TextTooShort(f"the calibration text has fewer than {CONTEXT} tokens")
    some = np.linspace(0, len(cut) - 1, min(WINDOWS, len(cut))).astype(int)
    return cut[some]
