"""Session files: a conversation, and what the KV cache holds of it.

The format is that of safetensors (a JSON header, then tensors): `ids` int32 [n], `pages` uint8 [pages, bytes
of a page], `state.0` … float32, the recurrent state behind the ids; and in the header's metadata `format`,
`model` (`fingerprint`), `layout` (`Machine.page_layout`) and `conversation` (JSON).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...quant.errors import DamagedFile
from ...quant.safe_files import NewFile
from ...untrusted import parse_json
from ..engine.scheduling.placement import Kept
from ..engine.state import SavedState

FORMAT = "kukri-session-1"
MOST_PAGES = 1 << 20
MOST_MARKS = 1 << 20  # brackets, commas and colons of a conversation
_SAMPLES, _SAMPLE_BYTES = 64, 4096  # of each file of a model
_DTYPES = {"int32": "I32", "uint8": "U8", "float32": "F32"}


@dataclass(frozen=True)
class SavedSession:
    """What a session file holds. `kept` is for a model and a machine of these `model` and `layout` only."""

    conversation: Mapping[str, Any]
    model: str
    layout: str
    kept: Kept


def fingerprint(paths: Sequence[Path], adapters: str = "") -> str:
    """A digest of a model's files: their sizes, their first MB, and samples of the rest (SHA-256).

    `adapters` is what else tells the model from others of the same files: the scales of its adapters.
    """
    digest = hashlib.sha256(adapters.encode())
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(1 << 20))
            for i in range(_SAMPLES):
                file.seek(size * i // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def write_session(path: Path, saved: SavedSession) -> int:
    """Write a session file that only this user can read, in place of one that is there; returns its bytes.

    It is there whole or not at all. Raises OSError.
    """
    kept = saved.kept
    arrays = {"ids": np.array(kept.ids, np.int32)}
    n_bytes = len(kept.pages[0]) if kept.pages else 0
    header: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "model": saved.model,
            "layout": saved.layout,
            "conversation": json.dumps(saved.conversation, ensure_ascii=False),
        }
    }
    if kept.state is not None:
        arrays |= {f"state.{i}": array for i, array in enumerate(kept.state.arrays)}
    sizes = {name: (_DTYPES[str(array.dtype)], array.shape, array.nbytes) for name, array in arrays.items()}
    sizes["pages"] = "U8", (len(kept.pages), n_bytes), len(kept.pages) * n_bytes
    at = 0
    for name, (dtype, shape, size) in sizes.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with NewFile(path, private=True) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data)
        for page in kept.pages:
            file.write(page.data)
    return 8 + len(text) + at


def read_session(path: Path) -> SavedSession:
    """A session file. Raises DamagedFile for one that is none, and OSError."""
    from safetensors import SafetensorError, safe_open

    name = path.name
    with path.open("rb"):  # an OSError for what cannot be opened
        pass
    try:
        with safe_open(path, "np") as file:
            about = file.metadata() or {}
            if about.get("format") != FORMAT:
                raise DamagedFile(f"{name} is not a session, or one of another version of kukri")
            names = sorted(key for key in file.keys() if key.startswith("state."))  # noqa: SIM118
            ids, pages = file.get_tensor("ids"), file.get_tensor("pages")
            states = tuple(file.get_tensor(key) for key in names)
        conversation = parse_json(about["conversation"].encode(), name, MOST_MARKS, DamagedFile)
    except (SafetensorError, KeyError, ValueError, RecursionError) as problem:
        if isinstance(problem, DamagedFile):
            raise
        raise DamagedFile(f"{name} is not a session: {' '.join(str(problem).split())}") from None
    sound = ids.dtype == np.int32 and ids.ndim == 1 and pages.dtype == np.uint8 and pages.ndim == 2
    if not sound or not isinstance(conversation, dict) or len(pages) > min(MOST_PAGES, len(ids)):
        raise DamagedFile(f"{name} is not a session: its parts do not fit together")
    state = SavedState(len(ids), states) if states else None
    kept = Kept(ids.tolist(), list(pages), state)
    return SavedSession(conversation, about.get("model", ""), about.get("layout", ""), kept)


def fits(saved: SavedSession, model: str, layout: str, page_size: int) -> bool:
    """Whether the cache of a session is one of this model on this machine."""
    n_pages = math.ceil(len(saved.kept.ids) / page_size)
    return saved.model == model and saved.layout == layout and len(saved.kept.pages) == n_pages
