"""Where an adapter's factors belong: from the names and layouts of a file to the matrices of a model.

A file names matrices as Hugging Face's modules or as GGUF's tensors, may join projections that are matrices
of their own here, and may have their rows in another order than the model's file: queries and keys for the
other RoPE pairing, heads of recurrent layers that go round their groups. The rows of `up` move with those of
the matrix, and the columns of `down` with its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...quant.block import QTensor
from ...quant.errors import DamagedFile, UnsupportedModel
from ..archs import ARCHS
from ..config.model_config import ModelConfig
from ..config.tensor_names import TensorNames
from ..export.tensors import column_order, gguf_name, row_order
from ..weights.binding import Part, row_groups
from ..weights.expected import shapes
from .low_rank import LowRank
from .stored import StoredPair

EMBEDDINGS = "token_embd.weight"
# What transformers 4 and 5 call the block with the experts in one and the same model
RENAMED = (("block_sparse_moe.", "mlp."), ("mlp.", "block_sparse_moe."))


@dataclass(frozen=True)
class Place:
    """The matrices that one matrix of a file holds, their rows one after the other or group by group.

    `parts` are names and shapes as in `weights.expected.shapes`; `groups` see `row_groups`.
    """

    parts: tuple[Part, ...]
    groups: tuple[int, list[int]] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs) of the file's matrix; of the embedding table (width, tokens)."""
        if self.parts[0][0] == EMBEDDINGS:
            return self.parts[0][1][1], self.parts[0][1][0]
        return sum(shape[0] for _, shape in self.parts), self.parts[0][1][1]


class Places:
    """The places of a model's matrices by the names that adapters have for them.

    `from_gguf` says whose names these are; `stored` are the tensors of the model's file.
    """

    def __init__(self, config: ModelConfig, stored: Mapping[str, QTensor], from_gguf: bool) -> None:
        self._config = config
        self._from_gguf = from_gguf
        self._own = _as_file(config, from_gguf)  # the model as its other kind of file would describe it
        self._places: dict[str, Place] = {}
        for named in self._namings(stored):
            self._add(named)

    def __getitem__(self, name: str) -> Place | None:
        """The place of the matrix `name` of a file; None if there is none."""
        return self._places.get(name)

    def changes(self, pair: StoredPair, place: Place) -> Iterator[tuple[str, LowRank]]:
        """The changes that a pair makes to the matrices of its place. Raises DamagedFile."""
        outputs, inputs = place.shape
        if (pair.up.shape[0], pair.down.shape[1]) != (outputs, inputs):
            wrong = pair.up if pair.up.shape[0] != outputs else pair.down
            raise DamagedFile(
                f"tensor {wrong.name} has shape {wrong.shape}, but the model's matrix is "
                f"({outputs}, {inputs})"
            )
        if pair.rank != pair.down.shape[0]:
            raise DamagedFile(
                f"tensor {pair.down.name} has rank {pair.down.shape[0]}, but its file says {pair.rank}"
            )
        down, up = pair.values()
        bias = None if pair.bias is None else pair.bias.dequantize().reshape(-1) * np.float32(pair.scale)
        if bias is not None and len(bias) != outputs:
            raise DamagedFile(f"tensor {pair.name}: its bias has {len(bias)} numbers, not {outputs}")
        if place.groups:
            order = grouped_rows(*place.groups)
            up, bias = up[order], None if bias is None else bias[order]
        start = 0
        for name, shape in place.parts:
            rows = slice(start, start + (outputs if name == EMBEDDINGS else shape[0]))
            start = rows.stop
            yield name, self._moved(name, LowRank(down, up[rows], None if bias is None else bias[rows]))

    def _moved(self, name: str, change: LowRank) -> LowRank:
        """A change of the matrix `name` in the layout of the model's file."""
        if self._from_gguf == self._config.from_gguf:
            return change
        hf = self._config if not self._config.from_gguf else self._own
        rows, columns = row_order(hf, name), column_order(hf, name.split(".")[-2])
        if self._from_gguf:  # the file's order i is the model's order[i]
            rows, columns = (None if order is None else np.argsort(order) for order in (rows, columns))
        down, up, bias = change.down, change.up, change.bias
        if rows is not None:
            up, bias = up[rows], None if bias is None else bias[rows]
        return LowRank(down if columns is None else down[:, columns], up, bias)

    def _namings(self, stored: Mapping[str, QTensor]) -> Iterator[dict[str, list[Part]]]:
        """Parts by the file's name of their matrix, for every way in which files name matrices."""
        c, arch = self._config, ARCHS[self._config.arch]
        matrices = [
            (name, shape) for name, shape in shapes(c) if len(shape) == 2 and name.endswith(".weight")
        ]
        if c.tied:
            matrices.append(("output.weight", (c.vocab_size, c.hidden)))
        if c.mla:
            rows = c.n_heads * (c.mla.nope_dim + c.mla.value_dim)
            heads = [(f"blk.{i}.attn_kv_b.weight", (rows, c.mla.kv_rank)) for i in range(c.n_layers)]
            if self._from_gguf:
                yield {name: [(name, shape)] for name, shape in heads}
        if self._from_gguf:
            yield {name: [(name, shape)] for name, shape in matrices}
            yield _by_name((gguf_name(c, name), name, shape) for name, shape in matrices)
            if c.from_gguf:
                names = TensorNames(arch, stored, True)
                yield _by_name((names(name), name, shape) for name, shape in matrices)
            return
        for prefix in arch.hf_prefixes:
            names = TensorNames(arch, {f"{prefix}{arch.hf_top['token_embd']}.weight"}, False)
            yield _by_name((names(name), name, shape) for name, shape in matrices)
            if c.mla:
                stems = ((part, part[0].replace("attn_kv_b", "attn_v_b")) for part in heads)
                yield {names(stem): [part] for part, stem in stems}

    def _add(self, named: dict[str, list[Part]]) -> None:
        for name, parts in named.items():
            key = name if self._from_gguf else name.removesuffix(".weight")
            groups = row_groups(self._own, name, [part for part, _ in parts]) if len(parts) > 1 else None
            place = self._places[key] = Place(tuple(parts), groups)
            for old, new in () if self._from_gguf else RENAMED:
                self._places.setdefault(key.replace(old, new), place)


def check_layouts(config: ModelConfig, from_gguf: bool, title: str) -> None:
    """Raise UnsupportedModel where an adapter of one kind of file cannot be moved to a model of the other."""
    if ARCHS[config.arch].multipliers_in_gguf_weights and from_gguf != config.from_gguf:
        kinds = ("a GGUF file", "a folder") if from_gguf else ("a folder", "a GGUF file")
        raise UnsupportedModel(
            f"{title}: {config.arch} models have other weights in GGUF files, so that this adapter needs "
            f"{kinds[0]} of the model, not {kinds[1]}"
        )


def _by_name(
    named: Iterator[tuple[str, str, tuple[int, ...]]],
) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for stored, name, shape in named:
        found.setdefault(stored, []).append((name, shape))
    return found


def _as_file(config: ModelConfig, from_gguf: bool) -> ModelConfig:
    """The configuration as a GGUF file or a folder of the same model has it, as far as layouts go."""
    if config.from_gguf == from_gguf:
        return config
    if from_gguf:
        return replace(config, from_gguf=True)
    interleaved, recurrence = ARCHS[config.arch].interleaved_in_hf, config.recurrence
    layers = tuple(
        replace(layer, rope=replace(layer.rope, interleaved=interleaved)) if layer.rope else layer
        for layer in config.layers
    )
    return replace(
        config,
        from_gguf=False,
        layers=layers,
        recurrence=replace(recurrence, tiled=False) if recurrence else None,
    )


def grouped_rows(groups: int, n_rows: list[int]) -> np.ndarray:
    """The row order that puts projections one after the other, from a matrix that has them by groups."""
    rows = np.arange(groups * sum(n_rows)).reshape(groups, sum(n_rows))
    return np.concatenate([part.reshape(-1) for part in np.split(rows, np.cumsum(n_rows)[:-1], axis=1)])
