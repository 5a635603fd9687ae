"""A model that several machines have: found on each, and compared."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .... import KukriError
from ...adapters.stored import NO_ADAPTERS, Adapters
from ...hub.resolve import resolve
from ...model.digest import model_digest


class AnotherFile(KukriError):
    """A machine's file is not the one that is meant."""


@dataclass(frozen=True)
class ModelFile:
    """A model as one machine has it: `name` as the user named it, the `path` there, and the `digest` of its
    files and adapters."""

    name: str
    path: Path
    digest: str
    adapters: Adapters = NO_ADAPTERS

    @classmethod
    def of(cls, name: str, path: Path, adapters: Adapters = NO_ADAPTERS) -> ModelFile:
        """The file or folder `path` of this machine. Raises FileNotFoundError and DamagedFile."""
        return cls(name, Path(os.path.abspath(path)), model_digest(path, adapters), adapters)

    def here(self) -> Path:
        """The same model on the machine that this is called on: at the same path, or by its name.

        Raises AnotherFile if that is something else, and as `resolve` and `model_digest` do.
        """
        path = self.path if self.path.exists() else resolve(self.name)
        found = model_digest(path, self.adapters)
        if found != self.digest:
            raise AnotherFile(f"its {path} is another file ({found[:12]}, not {self.digest[:12]})")
        return path
