"""The paths of the server: which handler answers them, which body they take, and their description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from . import page as page_module
from . import plain
from .anthropic import messages
from .call import Call
from .endpoint import Handler, Plain
from .inspect import about_model, inspection, timeline
from .inspect import page as inspect_page
from .ollama import chat as ollama_chat
from .ollama import embed as ollama_embed
from .ollama import models as ollama_models
from .openai import chat, completions, embeddings, models, rerank, responses
from .openapi import description, page
from .plain import Nothing


@dataclass(frozen=True)
class Path:
    """One path: its method, the handler and the struct that its body becomes, and the media type of what it
    gives. `group` is for /docs."""

    group: str
    method: str
    path: str
    handler: Handler[Any]
    schema: type[msgspec.Struct] = Nothing
    gives: str = "application/json"


async def openapi(call: Call, request: Nothing) -> dict[str, Any]:
    """This description, for programs."""
    return description(PATHS)


async def docs(call: Call, request: Nothing) -> Plain:
    """This description, for people."""
    return Plain(page(description(PATHS)), "text/html; charset=utf-8")


PATHS: Sequence[Path] = (
    Path("OpenAI", "GET", "/v1/models", models.models),
    Path("OpenAI", "GET", "/v1/models/{name:path}", models.model),
    Path("OpenAI", "POST", "/v1/chat/completions", chat.chat, chat.ChatRequest),
    Path("OpenAI", "POST", "/v1/completions", completions.completions, completions.CompletionRequest),
    Path("OpenAI", "POST", "/v1/responses", responses.responses, responses.ResponseRequest),
    Path("OpenAI", "POST", "/v1/embeddings", embeddings.embeddings, embeddings.EmbeddingsRequest),
    Path("OpenAI", "POST", "/v1/rerank", rerank.rerank, rerank.RerankRequest),
    Path("Anthropic", "POST", "/v1/messages", messages.messages, messages.MessagesRequest),
    Path("Anthropic", "POST", "/v1/messages/count_tokens", messages.count_tokens, messages.CountRequest),
    Path("Ollama", "POST", "/api/chat", ollama_chat.chat, ollama_chat.OllamaChatRequest),
    Path("Ollama", "POST", "/api/generate", ollama_chat.generate, ollama_chat.OllamaGenerateRequest),
    Path("Ollama", "POST", "/api/embed", ollama_embed.embed, ollama_embed.OllamaEmbedRequest),
    Path("Ollama", "POST", "/api/embeddings", ollama_embed.embeddings, ollama_embed.OllamaEmbeddingsRequest),
    Path("Ollama", "GET", "/api/tags", ollama_models.tags),
    Path("Ollama", "GET", "/api/ps", ollama_models.running),
    Path("Ollama", "POST", "/api/show", ollama_models.show, ollama_models.OllamaShowRequest),
    Path("Ollama", "GET", "/api/version", ollama_models.version),
    Path("server", "GET", "/", page_module.page, gives="text/html"),
    Path("server", "GET", "/health", plain.health),
    Path("server", "GET", "/metrics", plain.metrics, gives="text/plain"),
    Path("server", "POST", "/tokenize", plain.tokenize, plain.TokenizeRequest),
    Path("server", "POST", "/detokenize", plain.detokenize, plain.DetokenizeRequest),
    Path("inspect", "GET", "/inspect", inspect_page.page, gives="text/html"),
    Path("inspect", "POST", "/inspect/prompt", inspection.inspect, inspection.InspectRequest),
    Path("inspect", "POST", "/inspect/attention", inspection.attention, inspection.AttentionRequest),
    Path("inspect", "POST", "/inspect/next", inspection.following, inspection.NextRequest),
    Path("inspect", "POST", "/inspect/near", about_model.near, about_model.NearRequest),
    Path("inspect", "POST", "/inspect/beams", about_model.beams, about_model.BeamRequest),
    Path("inspect", "POST", "/inspect/model", about_model.about, about_model.ModelRequest),
    Path("inspect", "POST", "/inspect/timeline", timeline.timeline, timeline.TimelineRequest),
    Path("server", "GET", "/openapi.json", openapi),
    Path("server", "GET", "/docs", docs, gives="text/html"),
)
