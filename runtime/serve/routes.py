"""The paths of the server: which handler answers them, and which body it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from . import plain
from .endpoint import Handler
from .openai import chat, models
from .plain import Nothing


@dataclass(frozen=True)
class Path:
    """One path: its method, the handler and the struct that its body becomes. `group` is for /docs."""

    group: str
    method: str
    path: str
    handler: Handler[Any]
    schema: type[msgspec.Struct] = Nothing


PATHS: Sequence[Path] = (
    Path("OpenAI", "GET", "/v1/models", models.models),
    Path("OpenAI", "GET", "/v1/models/{name:path}", models.model),
    Path("OpenAI", "POST", "/v1/chat/completions", chat.chat, chat.ChatRequest),
    Path("server", "GET", "/health", plain.health),
    Path("server", "GET", "/metrics", plain.metrics),
    Path("server", "POST", "/tokenize", plain.tokenize, plain.TokenizeRequest),
    Path("server", "POST", "/detokenize", plain.detokenize, plain.DetokenizeRequest),
)
