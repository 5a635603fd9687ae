"""The fingerprint of a model that is not loaded, for those who hand out its work to others."""

from __future__ import annotations

from pathlib import Path

from ..adapters.adapt import open_adapter
from ..adapters.control_vectors import read_control_vector
from ..adapters.stored import NO_ADAPTERS, Adapters
from .fingerprint import fingerprint
from .source import open_source


def model_digest(path: Path, adapters: Adapters = NO_ADAPTERS) -> str:
    """What `Model.fingerprint` would be of the file or folder `path` with these adapters.

    Raises FileNotFoundError, DamagedFile or UnsupportedModel (a DamagedFile).
    """
    lora = [
        (file, each.scale) for each in adapters.lora if each.scale for file in open_adapter(each.path).paths
    ]
    vectors = [
        (file, each.scale)
        for each in adapters.control_vectors
        if each.scale
        for file in read_control_vector(each.path).paths
    ]
    return fingerprint(open_source(path, text=False).paths, [*lora, *vectors])
