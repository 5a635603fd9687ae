"""What a file or folder is, if it is an adapter: for people, before any model is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...quant.errors import DamagedFile
from ...quant.gguf.reader import MAGIC, GGUFFile
from ...untrusted import open_file
from .adapt import open_adapter
from .control_vectors import read_control_vector
from .peft import CONFIG, WEIGHTS


@dataclass(frozen=True)
class AboutAdapter:
    """An adapter on its own. `base` is the model or architecture that its files name, or ""."""

    kind: str
    base: str
    paths: tuple[Path, ...]
    n_weights: int
    n_matrices: int = 0  # that a LoRA adapter changes
    ranks: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()  # alpha / rank, each once
    replaced: tuple[str, ...] = ()  # whole tensors of the model that it replaces
    layers: tuple[int, ...] = ()  # behind which a control vector acts


def about_adapter(path: Path) -> AboutAdapter | None:
    """What the adapter at `path` is; None if that is no adapter.

    Raises DamagedFile for an adapter that cannot be read, OSError.
    """
    if path.is_dir():
        is_lora = all((path / name).exists() for name in (CONFIG, WEIGHTS))
        is_lora = is_lora and not (path / "config.json").exists()
        return _about_lora(path) if is_lora else None
    if path.name == WEIGHTS and (path.parent / CONFIG).exists():
        return _about_lora(path)
    with open_file(path, DamagedFile) as file:
        if file.read(len(MAGIC)) != MAGIC:
            return None
    metadata = GGUFFile.open(path, tensors=False).metadata
    kinds = [metadata.get(key) for key in ("general.type", "general.architecture")]
    if kinds[0] == "adapter":
        return _about_lora(path)
    if "controlvector" in [kind for kind in kinds if isinstance(kind, str)]:
        vector = read_control_vector(path)
        n_weights = sum(direction.size for direction in vector.directions.values())
        layers = tuple(sorted(vector.directions))
        return AboutAdapter("control vector", vector.hint, vector.paths, n_weights, layers=layers)
    return None


def _about_lora(path: Path) -> AboutAdapter:
    adapter = open_adapter(path)
    return AboutAdapter(
        "LoRA adapter (GGUF)" if adapter.from_gguf else "LoRA adapter (PEFT)",
        adapter.base,
        adapter.paths,
        adapter.n_weights,
        len(adapter.pairs),
        tuple(adapter.ranks),
        tuple(sorted({pair.scale for pair in adapter.pairs.values()})),
        tuple(sorted(adapter.replaced)),
    )
