"""Weight panels on disk: a later start maps a file instead of repacking the same weights into new memory.

The file is the memory that `Lowering` fills, as it is. Mapped, it needs no memory beside the system's file
cache, which processes share, and nothing is computed. That is many times faster where memory must be cleared
first, above all on virtual machines, whose hosts take back what is free.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...quant.block import QTensor
from ...quant.cache_folder import WEIGHTS
from ...quant.errors import DamagedFile, NoHome
from ...quant.jit.levels import LANES
from ...quant.mapped_file import MappedFile
from ...quant.safe_files import NewFile
from ...quant.units import human_bytes
from .simd.panels import panel_row_bytes, repack, repacked_bytes

VERSION = 2
ALIGNMENT = 64  # bytes
SPARE_BYTES = 1 << 30  # that writing leaves free on the disk
CHECKED = 256  # matrices that are compared with the model's file, at most
WRITTEN = 16 << 20  # bytes written at a time


@dataclass(frozen=True)
class KeptPanels:
    """A file of a model's panels in kukri's own folder.

    `model` tells the model's files from all others. The files of all models take at most `most_bytes`: those
    used longest ago go. `warn` is called with a line where a file cannot be written.
    """

    model: str
    most_bytes: int
    warn: Callable[[str], None]

    def read(self, weights: Sequence[QTensor]) -> np.ndarray | None:
        """The panels of `weights`, read-only uint8 [panel_bytes]; None if there is no such file, or none that
        can be read: then `write` makes it anew, or says why it cannot.

        Some panels are compared with what they are made of, lest another model's are taken for them.
        """
        try:
            WEIGHTS.make()
            path = self._path(weights)
            file = MappedFile(path)
        except (OSError, DamagedFile, NoHome):
            return None
        if file.n_bytes != panel_bytes(weights) or not _is_of(weights, file.bytes):
            return None
        with suppress(OSError):
            os.utime(path)  # it counts as used now
        return file.bytes

    def write(
        self, weights: Sequence[QTensor], memory: np.ndarray, progress: Callable[[int, int], None]
    ) -> None:
        """Keep the panels of `weights`, uint8 [panel_bytes], for later, if there is room for them.

        `progress` is called with the bytes done and those in all.
        """
        size = len(memory)
        if size > self.most_bytes:
            self.warn(
                f"the weights are not kept: they take {human_bytes(size)}, and the weight cache has "
                f"{human_bytes(self.most_bytes)}"
            )
            return
        try:
            folder = WEIGHTS.make()
            WEIGHTS.make_room(self.most_bytes - size)
            if shutil.disk_usage(folder).free < size + SPARE_BYTES:
                self.warn(f"the weights are not kept: the disk has no room for {human_bytes(size)}")
                return
            with NewFile(self._path(weights), private=True) as file:
                for start in range(0, size, WRITTEN):
                    progress(start, size)
                    file.write(memory[start : start + WRITTEN].data)
        except (OSError, NoHome) as problem:
            self.warn(f"the weights are not kept: {getattr(problem, 'strerror', None) or problem}")

    def _path(self, weights: Sequence[QTensor]) -> Path:
        """The file of these matrices in this machine's layout."""
        digest = hashlib.sha256(f"{VERSION} {LANES} {self.model}\n".encode())
        for weight in weights:
            digest.update(f"{weight.name} {weight.format.name} {weight.shape}\n".encode())
        return WEIGHTS.path / f"{digest.hexdigest()[:40]}{WEIGHTS.ending}"


def panel_bytes(weights: Sequence[QTensor]) -> int:
    """Bytes of the panels of all `weights`, as `cut_panels` finds them."""
    return sum(_room(weight) for weight in weights)


def cut_panels(weights: Sequence[QTensor], memory: np.ndarray) -> list[np.ndarray]:
    """The panels of each matrix, uint8 [repacked_bytes], in the memory of all, uint8 [panel_bytes]."""
    panels, start = [], 0
    for weight in weights:
        panels.append(memory[start : start + repacked_bytes(weight, LANES)])
        start += _room(weight)
    return panels


def _room(weight: QTensor) -> int:
    return -(-repacked_bytes(weight, LANES) // ALIGNMENT) * ALIGNMENT


def _is_of(weights: Sequence[QTensor], memory: np.ndarray) -> bool:
    """Whether the first and the last panel of matrices here and there are those of the model's file."""
    step = max(1, len(weights) // CHECKED)
    pairs = list(zip(weights, cut_panels(weights, memory), strict=True))
    return all(_begins_and_ends(*pair) for pair in [*pairs[::step], *pairs[-1:]])


def _begins_and_ends(weight: QTensor, panels: np.ndarray) -> bool:
    n_rows, row_bytes = len(weight.data), panel_row_bytes(weight)
    for first in {0, (n_rows - 1) // LANES * LANES}:
        panel = repack(weight.part_of_rows(first, min(first + LANES, n_rows)), LANES).reshape(-1)
        if not np.array_equal(panel, panels[first * row_bytes : first * row_bytes + len(panel)]):
            return False
    return True
