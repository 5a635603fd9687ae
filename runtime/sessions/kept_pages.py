"""What a KV cache holds of a beginning, as parts of a file, and back into the cache of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...quant.errors import DamagedFile
from ..engine.errors import ContextExceeded
from ..engine.scheduling.placement import Kept
from ..engine.state import SavedState

if TYPE_CHECKING:
    from ..model.model import Model

NOTHING = Kept([], [])


def about_cache(model: Model) -> dict[str, str]:
    """What must be the same for a model to go on from pages: its files and adapters, and how its machine lays
    a page out, which includes the type of the KV cache."""
    return {"model": model.fingerprint, "layout": model.engine.machine.page_layout}


def cached_bytes(model: Model, ids: Sequence[int]) -> int:
    """How large the pages of so many ids are, in bytes."""
    engine = model.engine
    return -(-len(ids) // engine.table.page_size) * len(engine.machine.read_page(0))


def take_out(model: Model, ids: Sequence[int]) -> Kept:
    """What the model's cache holds of the longest beginning of `ids` that it knows."""
    return model.engine.take_out(ids[: model.engine.context])


def put_in(model: Model, kept: Kept, name: str) -> bool:
    """Give the model's cache what a file has; False if there is no room for that.

    Raises DamagedFile, which calls the file `name`, if it cannot be the content of such a cache.
    """
    try:
        return not kept.ids or model.engine.put_in(kept)
    except ContextExceeded:
        return False
    except (TypeError, ValueError) as problem:
        raise DamagedFile(f"{name} is damaged: {problem}") from None


def to_parts(kept: Kept) -> tuple[dict[str, Any], dict[str, np.ndarray | Sequence[np.ndarray]]]:
    """What the header of a file says about it, and its parts: `ids` int32 [n], `pages` uint8 [pages, bytes of
    a page], and for each recurrent state its arrays `state.I.J` float32."""
    parts: dict[str, np.ndarray | Sequence[np.ndarray]] = {
        "ids": np.array(kept.ids, np.int32),
        "pages": list(kept.pages),
    }
    for i, state in enumerate(kept.states):
        parts |= {f"state.{i}.{j}": array for j, array in enumerate(state.arrays)}
    return {"states": [state.length for state in kept.states], "long": kept.long}, parts


def from_parts(about: Mapping[str, Any], parts: Mapping[str, np.ndarray], name: str) -> Kept:
    """The contrary of `to_parts`. Raises DamagedFile, which calls the file `name`."""
    ids, pages = parts.get("ids"), parts.get("pages")
    lengths, long = about.get("states"), about.get("long")
    sound = (
        ids is not None
        and (ids.dtype, ids.ndim) == (np.int32, 1)
        and pages is not None
        and (pages.dtype, pages.ndim) == (np.uint8, 2)
        and len(pages) <= len(ids)
        and isinstance(lengths, list)
        and all(type(length) is int and 0 < length <= len(ids) for length in lengths)
        and isinstance(long, bool)
    )
    if not sound:
        raise DamagedFile(f"{name} is damaged: its parts do not fit together")
    assert ids is not None
    assert pages is not None
    states = []
    for i, length in enumerate(lengths or ()):
        of_this = [each for each in parts if each.startswith(f"state.{i}.")]
        arrays = [parts.get(f"state.{i}.{j}") for j in range(len(of_this))]
        if any(array is None or array.dtype != np.float32 for array in arrays):
            raise DamagedFile(f"{name} is damaged: a recurrent state lacks something")
        states.append(SavedState(length, tuple(array for array in arrays if array is not None)))
    return Kept(ids.tolist(), list(pages), tuple(states), bool(long))
