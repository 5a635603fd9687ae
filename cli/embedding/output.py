"""Vectors on stdout: an object a line, or one array in NumPy's format."""

from __future__ import annotations

import io
import tempfile
from typing import TYPE_CHECKING

from ..console import terminal
from ..console.safe_text import as_json
from .texts import Item

if TYPE_CHECKING:
    import numpy as np


class JsonLines:
    """Writes {"index", "embedding"} for each text, and its `id` where it has one."""

    def __init__(self) -> None:
        self._written = 0

    def add(self, items: list[Item], vectors: np.ndarray) -> None:
        for item, vector in zip(items, vectors, strict=True):
            facts = {"index": self._written, **({} if item.id is None else {"id": item.id})}
            # Nine digits are enough to read the same float32 back.
            numbers = ", ".join(f"{value:.9g}" for value in vector.tolist())
            terminal.write(f'{as_json(facts)[:-1]}, "embedding": [{numbers}]}}\n')
            self._written += 1

    def close(self) -> None:
        """Nothing is left to write."""


class Npy:
    """Writes float32 [texts, dimensions] in the .npy format, whose beginning states how many texts there are.

    Until that is known the vectors are in a temporary file.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
        self._shape = (0, 0)

    def add(self, items: list[Item], vectors: np.ndarray) -> None:
        self._file.write(vectors.astype("<f4", copy=False).tobytes())
        self._shape = self._shape[0] + len(items), vectors.shape[1]

    def close(self) -> None:
        from numpy.lib import format as npy

        header = io.BytesIO()
        npy.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": self._shape})
        terminal.write_bytes(header.getvalue())
        self._file.seek(0)
        while block := self._file.read(1 << 20):
            terminal.write_bytes(block)
        self._file.close()
