"""The tensors of a layer's experts, in every layout that files have for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...quant.block import QTensor
from ...quant.checkpoint.lazy_rows import is_lazy
from ...quant.errors import DamagedFile
from ..archs import Arch
from ..config.moe import MoEConfig
from ..config.tensor_names import TensorNames

PROJECTIONS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


@dataclass(frozen=True)
class _Stack:
    """Where a projection of all experts is in a file: part `part` of `parts` of the rows of tensor `name`.

    The parts of an expert's rows follow each other, or alternate row by row if `alternating`.
    """

    name: str
    bias: str
    part: int
    parts: int
    alternating: bool


class ExpertTensors:
    """The experts of one layer: `matrices` and, if there are any, float32 `biases` by projection.

    `matrices[stem]` has an (outputs, inputs) matrix for each expert; they are views of the file where its
    layout allows it. `biases[stem]` is [experts, outputs]. `used` are the names of their tensors in the file.
    Raises DamagedFile.
    """

    def __init__(
        self,
        layer: int,
        moe: MoEConfig,
        hidden: int,
        arch: Arch,
        names: TensorNames,
        tensors: Mapping[str, QTensor],
    ) -> None:
        self.matrices: dict[str, tuple[QTensor, ...]] = {}
        self.biases: dict[str, np.ndarray] = {}
        self.used: set[str] = set()
        self._tensors = tensors
        for stem in PROJECTIONS:
            if stem not in arch.layer:
                continue
            shape = (hidden, moe.width) if stem == "ffn_down_exps" else (moe.width, hidden)
            name = names(f"blk.{layer}.{stem}.weight")
            if "{}" in name and stacked_name(name, stem) not in tensors:
                each = [self._take(name.format(e), shape) for e in range(moe.n_experts)]
                self.matrices[stem] = tuple(each)
                continue
            stack = self._stack_in_gguf(layer, stem, arch, names) if names.from_gguf else None
            stack = stack or self._stack_in_folder(name, stem, arch)
            self.matrices[stem] = self._split(stack, moe.n_experts, shape)
            if stack.bias in tensors:
                values = self._take(stack.bias, (moe.n_experts, stack.parts * shape[0])).dequantize()
                alternating, first = values[:, stack.part :: stack.parts], stack.part * shape[0]
                self.biases[stem] = alternating if stack.alternating else values[:, first:][:, : shape[0]]

    def _stack_in_gguf(self, layer: int, stem: str, arch: Arch, names: TensorNames) -> _Stack:
        name, bias = names(f"blk.{layer}.{stem}.weight"), names(f"blk.{layer}.{stem}.bias")
        gate, up = "ffn_gate_exps", "ffn_up_exps"
        fused = stem != "ffn_down_exps" and gate in arch.layer and up in arch.layer
        fused = fused and names(f"blk.{layer}.{gate}.weight") == names(f"blk.{layer}.{up}.weight")
        return _Stack(name, bias, int(fused and stem == up), 2 if fused else 1, alternating=False)

    def _stack_in_folder(self, name: str, stem: str, arch: Arch) -> _Stack:
        if "{}" in name:
            name = stacked_name(name, stem)
        elif name not in self._tensors:
            name = name.removesuffix(".weight")
        parts = 1 if stem == "ffn_down_exps" else 2
        return _Stack(name, f"{name}_bias", int(stem == "ffn_up_exps"), parts, arch.hf_experts_transposed)

    def _take(self, name: str, shape: tuple[int, ...]) -> QTensor:
        """The tensor of this name, which must have this shape."""
        if name not in self._tensors:
            raise DamagedFile(f"tensor {name} is missing")
        if (actual := self._tensors[name].shape) != shape:
            raise DamagedFile(f"tensor {name} has shape {actual}, but the model needs {shape}")
        self.used.add(name)
        return self._tensors[name]

    def _split(self, stack: _Stack, n_experts: int, shape: tuple[int, int]) -> tuple[QTensor, ...]:
        """The matrix of each expert out of a tensor [experts, parts · outputs, inputs].

        An alternating tensor in floats is [experts, inputs, outputs · parts] instead, and copied.
        """
        rows, width = shape
        part, parts = stack.part, stack.parts
        packed = stack.name in self._tensors and is_lazy(self._tensors[stack.name])
        if stack.alternating and not packed:
            whole = self._take(stack.name, (n_experts, width, parts * rows))
            values = whole.data.reshape(n_experts, width, rows, parts, -1)[:, :, :, part].swapaxes(1, 2)
            data = np.ascontiguousarray(values).reshape(n_experts, rows, -1)
            return tuple(replace(whole, shape=shape, data=data[e]) for e in range(n_experts))
        whole = self._take(stack.name, (n_experts, parts * rows, width))
        first, step = (part, parts) if stack.alternating else (part * rows, 1)
        starts = [e * parts * rows + first for e in range(n_experts)]
        return tuple(
            replace(whole, shape=shape, data=whole.data[start : start + (rows - 1) * step + 1 : step])
            for start in starts
        )


def stacked_name(name: str, stem: str) -> str:
    """The name of one tensor for all experts; `name` is the pattern of a tensor for each expert."""
    projection = "down_proj" if stem == "ffn_down_exps" else "gate_up_proj"
    return f"{name.partition('.{}')[0]}.{projection}"
