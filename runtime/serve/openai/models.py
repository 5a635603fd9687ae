"""GET /v1/models."""

from __future__ import annotations

from typing import Any

from ..call import Call
from ..plain import Nothing
from ..pool import Entry


async def models(call: Call, request: Nothing) -> dict[str, Any]:
    """The models that this server was configured with."""
    return {"object": "list", "data": [_model(entry) for entry in call.serving.pool.entries.values()]}


async def model(call: Call, request: Nothing) -> dict[str, Any]:
    """One of them."""
    return _model(call.serving.pool.find(call.path.removeprefix("/v1/models/")))


def _model(entry: Entry) -> dict[str, Any]:
    more = {"context_length": entry.model.context} if entry.model is not None else {}
    return {
        "id": entry.name,
        "object": "model",
        "created": entry.created,
        "owned_by": "kukri",
        "loaded": entry.model is not None,
        **more,
    }
