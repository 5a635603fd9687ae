"""Where an adapter's factors for experts belong: one expert's module, or the stack of a layer's experts.

PEFT keeps the factors of a stack `experts.gate_up_proj` under the module that holds it: `down` (experts ·
rank, inputs), expert by expert, and `up` (outputs, rank · experts), whose columns go round the experts. The
second stack of the same module is wrapped in the first, ".base_layer"; shapes tell which is which. GGUF has
`down` [experts, rank, inputs] and `up` [experts, outputs, rank].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...quant.errors import DamagedFile
from ..archs import ARCHS
from ..config.model_config import ModelConfig
from ..config.tensor_names import TensorNames
from ..weights.experts import PROJECTIONS, stacked_name
from .low_rank import LowRank
from .places import RENAMED
from .stored import StoredPair


@dataclass(frozen=True)
class ExpertPlace:
    """Projections of a layer's experts that one matrix or stack of a file holds.

    `stems` are one of PROJECTIONS, or gate and up, whose rows follow each other or alternate. `expert` is the
    number of the expert, or None for a stack of all `n_experts`. `shape` is (outputs, inputs) of a matrix.
    """

    layer: int
    stems: tuple[str, ...]
    shape: tuple[int, int]
    n_experts: int
    expert: int | None = None
    alternating: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the stacks that a pair changes, as `weights.expected.shapes` would have them."""
        return [f"blk.{self.layer}.{stem}.weight" for stem in self.stems]

    def fits(self, pair: StoredPair) -> bool:
        """Whether a pair has the shapes of a change here."""
        down, up, n = pair.down.shape, pair.up.shape, self.n_experts
        if self.expert is not None:
            return len(up) == 2 and (up[0], down[1]) == self.shape
        if len(up) == 3:
            return up[0] == n and (up[1], down[2]) == self.shape
        return (up[0], down[1]) == self.shape and up[1] % n == 0

    def changes(self, pair: StoredPair) -> Iterator[tuple[str, LowRank]]:
        """The changes of the projections: of the one expert, or of all with a first dimension of experts."""
        down, up = pair.values()
        if self.expert is None and down.ndim == 2:
            down = down.reshape(self.n_experts, -1, down.shape[1])
            up = up.reshape(len(up), -1, self.n_experts).transpose(2, 0, 1)
        if len(self.stems) == 1:
            yield self.names[0], LowRank(down, up)
            return
        n_rows = self.shape[0] // 2
        for i, name in enumerate(self.names):
            rows = slice(i, None, 2) if self.alternating else slice(i * n_rows, (i + 1) * n_rows)
            yield name, LowRank(down, up[..., rows, :])


class ExpertPlaces:
    """The places of the experts of a model by the names that adapters have for them."""

    def __init__(self, config: ModelConfig, from_gguf: bool) -> None:
        self._config = config
        self._places: dict[str, list[ExpertPlace]] = {}
        for i, layer in enumerate(config.layers):
            if layer.is_moe and config.moe:
                (self._add_gguf if from_gguf else self._add_modules)(i)

    def find(self, name: str, pair: StoredPair) -> ExpertPlace | None:
        """The place of the pair `name` of a file; None if it is of no experts. Raises DamagedFile."""
        found = self._places.get(name)
        if not found:
            return None
        if place := next((place for place in found if place.fits(pair)), None):
            return place
        raise DamagedFile(
            f"tensors {pair.down.name} {pair.down.shape} and {pair.up.name} {pair.up.shape} do not fit the "
            f"model's experts, which are {' or '.join(str(place.shape) for place in found)}"
        )

    def _place(
        self, layer: int, stems: tuple[str, ...], expert: int | None = None, alternating: bool = False
    ) -> ExpertPlace:
        moe = self._config.moe
        assert moe
        hidden = moe.latent_width or self._config.hidden
        shape = (hidden, moe.width) if stems == PROJECTIONS[2:] else (len(stems) * moe.width, hidden)
        return ExpertPlace(layer, stems, shape, moe.n_experts, expert, alternating)

    def _add(self, name: str, place: ExpertPlace) -> None:
        self._places.setdefault(name, []).append(place)

    def _add_gguf(self, layer: int) -> None:
        arch = ARCHS[self._config.arch]
        stems = [stem for stem in PROJECTIONS if stem in arch.layer]
        for stem in stems:
            self._add(f"blk.{layer}.{arch.gguf_names.get(stem, stem)}.weight", self._place(layer, (stem,)))
        if stems[:2] == list(PROJECTIONS[:2]):
            self._add(f"blk.{layer}.ffn_gate_up_exps.weight", self._place(layer, PROJECTIONS[:2]))

    def _add_modules(self, layer: int) -> None:
        arch, moe = ARCHS[self._config.arch], self._config.moe
        assert moe
        has_gate = PROJECTIONS[0] in arch.layer
        for prefix in arch.hf_prefixes:
            names = TensorNames(arch, {f"{prefix}{arch.hf_top['token_embd']}.weight"}, False)
            for stem in PROJECTIONS:
                if stem not in arch.layer:
                    continue
                name = names(f"blk.{layer}.{stem}.weight").removesuffix(".weight")
                if "{}" in name:
                    for e in range(moe.n_experts):
                        self._add(name.format(e), self._place(layer, (stem,), e))
                    name = stacked_name(name, stem)
                if stem == PROJECTIONS[1] and has_gate:
                    continue  # it is the second half of the gate's stack
                stems = PROJECTIONS[:2] if stem == PROJECTIONS[0] else (stem,)
                for module in _modules(name):
                    self._add(module, self._place(layer, stems, None, arch.hf_experts_transposed))


def _modules(stack: str) -> set[str]:
    """The names under which PEFT may keep the factors of a stack of matrices."""
    holder = stack.rpartition(".")[0]
    holders = {holder, *(holder.replace(old, new) for old, new in RENAMED)}
    return {name for each in holders for name in (stack, each, f"{each}.base_layer")}


def stack_of_experts(changes: Mapping[int, LowRank], n_experts: int) -> LowRank:
    """Changes of single experts as one of their stack, with zeros for those that have none."""
    first, rank = next(iter(changes.values())), max(change.rank for change in changes.values())
    down = np.zeros((n_experts, rank, first.down.shape[1]), np.float32)
    up = np.zeros((n_experts, len(first.up), rank), np.float32)
    for e, change in changes.items():
        down[e, : change.rank], up[e, :, : change.rank] = change.down, change.up
    return LowRank(down, up)
