"""`llm ps`: what a server has in memory, and what it is doing."""

from __future__ import annotations

from typing import Annotated, Any

from ...quant.units import human_bytes
from ..connect.client import DEFAULT_URL, ServerClient, ServerError
from ..console import terminal
from ..console.options import TextOrJson, flag
from ..console.safe_text import as_json
from ..console.table import table


def ps(
    connect: Annotated[str, flag("--connect", metavar="URL", help="The server.")] = DEFAULT_URL,
    api_key: Annotated[str | None, flag("--api-key", metavar="KEY", help="The server's key.")] = None,
    output: Annotated[TextOrJson, flag("-o", "--output", help="What stdout gets.")] = TextOrJson.text,
) -> None:
    """Show the models that a server (llm serve) has in memory, and their requests."""
    server = ServerClient(connect, api_key)
    try:
        models: list[dict[str, Any]] = [
            {
                "name": str(model["name"]),
                "size": int(model["size"]),
                "context": int(model.get("context_length") or 0),
                "requests": int(model.get("requests") or 0),
            }
            for model in server.get("/api/ps")["models"]
        ]
    except (KeyError, TypeError, ValueError):
        raise ServerError(f"{server.url} does not say what it has in memory") from None
    if output is TextOrJson.json:
        terminal.write(as_json(models, indent=1) + "\n")
    elif models:
        rows = [
            (model["name"], human_bytes(model["size"]), str(model["context"]), str(model["requests"]))
            for model in models
        ]
        terminal.write(table(("NAME", "SIZE", "CONTEXT", "REQUESTS"), rows, right=(1, 2, 3)))
    else:
        terminal.note("no model is in memory")
