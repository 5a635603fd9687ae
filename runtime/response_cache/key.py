"""By what a request is known again: a digest of everything that its answer depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..answers.functions import Tool
from ..answers.request import GenerationRequest
from ..engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from ..model.model import Model

VERSION = 1  # of what is kept; another one finds nothing of the others
# Messages, raw text and variables of the template are in the ids of the prompt, and `params` come with ids in
# place of texts. The priority says when, not what.
_IN_IDS = {"messages", "prompt", "ids", "variables", "params", "priority"}


def about_model(model: Model, version: str) -> dict[str, Any]:
    """What of a loaded model decides its answers: its files and adapters, and where and in which numbers it
    computes. `version` is that of the program, since another one may round differently."""
    engine = model.engine
    return {
        "version": [VERSION, version],
        "model": model.fingerprint,
        "ends": sorted(model.end_ids),
        "machine": type(engine.machine).__name__,
        "pages": engine.machine.page_layout,  # the type of the KV cache
        "alone": not engine.shares_beginnings,
    }


def request_key(
    about: Mapping[str, Any], request: GenerationRequest, ids: Sequence[int], params: SamplingParams
) -> bytes:
    """SHA-256 of a model (`about_model`), of all fields of a request and of its parameters, and of the ids of
    its prompt. A field that is added to GenerationRequest or SamplingParams counts by itself."""
    asked = {f.name: getattr(request, f.name) for f in fields(request) if f.name not in _IN_IDS}
    asked["chat"] = request.messages is not None  # whose answers are read by the model's chat format
    asked["params"] = params
    text = json.dumps([about, asked], sort_keys=True, default=_plain)
    digest = hashlib.sha256(text.encode())
    digest.update(np.asarray(ids, "<i8").tobytes())
    return digest.digest()


def _plain(value: Any) -> Any:
    """What json cannot write, as something that it can: the same for equal values, other for others."""
    if isinstance(value, Tool):
        return dict(value.schema)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, Sequence | np.ndarray):
        return list(value)
    return repr(value)
