"""The other paths of Ollama's API: which models there are, what they are, and which are in memory."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from .... import __version__
from ...hub.files import quant_of
from ...model.model import Model
from ..call import Call
from ..plain import Nothing
from ..pool import Entry

KEPT = datetime(9999, 12, 31, tzinfo=UTC).isoformat()  # models stay until others need the memory


class OllamaShowRequest(msgspec.Struct):
    """The model to describe."""

    model: str | None = None
    name: str | None = None


async def version(call: Call, request: Nothing) -> dict[str, str]:
    """The version of this server."""
    return {"version": __version__}


async def tags(call: Call, request: Nothing) -> dict[str, Any]:
    """The configured models."""
    return {"models": [_about(entry) for entry in call.serving.pool.entries.values()]}


async def running(call: Call, request: Nothing) -> dict[str, Any]:
    """The models in memory."""
    loaded = [entry for entry in call.serving.pool.entries.values() if entry.model is not None]
    return {
        "models": [
            {
                **_about(entry),
                "expires_at": KEPT,
                "size_vram": 0,
                "context_length": entry.model.context if entry.model else 0,
                "requests": entry.n_users,
            }
            for entry in loaded
        ]
    }


async def show(call: Call, request: OllamaShowRequest) -> dict[str, Any]:
    """What a model is."""
    model = await call.model(request.model or request.name)
    entry = call.serving.pool.find(call.model_name)
    config = model.config
    return {
        "modelfile": f"FROM {entry.name}",
        "parameters": "",
        "template": model.chat_template or "",
        "details": _details(entry),
        "model_info": {
            "general.architecture": config.arch,
            "general.basename": model.name,
            f"{config.arch}.context_length": config.context_length,
            f"{config.arch}.embedding_length": config.hidden,
            f"{config.arch}.block_count": len(config.layers),
        },
        "capabilities": _capabilities(model),
        "modified_at": _time(entry),
    }


def _capabilities(model: Model) -> list[str]:
    """What a model can do, in Ollama's words."""
    if model.vectors is not None:
        return ["embedding"]
    output = model.chat_format.output
    more = [name for name, has in (("tools", output.takes_tools), ("thinking", output.thinks)) if has]
    return ["completion", *more]


def _about(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "model": entry.name,
        "modified_at": _time(entry),
        "size": entry.n_bytes,
        "digest": "",
        "details": _details(entry),
    }


def _details(entry: Entry) -> dict[str, Any]:
    family = entry.model.config.arch if entry.model is not None else ""
    return {
        "parent_model": "",
        "format": "gguf" if entry.path.suffix == ".gguf" else "safetensors",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "",
        "quantization_level": quant_of(entry.path.name),
    }


def _time(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.created, UTC).isoformat()
