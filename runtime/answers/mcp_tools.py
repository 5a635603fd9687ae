"""Tools of an MCP server (Model Context Protocol), which runs as a process of its own.

Needs the package `mcp`, the extra kukri[mcp], which is imported here only.
"""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from .functions import Tool

if TYPE_CHECKING:
    from mcp import ClientSession

START_SECONDS = 60.0  # in which a server must answer
CALL_SECONDS = 600.0  # more than any caller waits


class McpServer:
    """The server that `command` starts, and its `tools`, which run there. Close it at the end.

    Raises ValueError if the package `mcp` is missing, or if the server does not start or has no tools.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._session: ClientSession | None = None
        self._problem: BaseException | None = None
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self.tools: list[Tool] = []
        self._thread = threading.Thread(target=self._work, name="mcp", daemon=True)
        words = shlex.split(command)
        if not words:
            raise ValueError("an MCP server needs a command")
        self._words = words
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise ValueError("MCP servers need the package mcp: pip install 'kukri[mcp]'") from None
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            self.close()
            raise ValueError(f"the MCP server {command!r} does not answer")
        if self._problem is not None:
            raise ValueError(f"the MCP server {command!r} does not start: {_innermost(self._problem)}")
        if not self.tools:
            self.close()
            raise ValueError(f"the MCP server {command!r} has no tools")

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as problem:  # noqa: BLE001 - told by the thread that waits
            self._problem = problem
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client

        parameters = StdioServerParameters(command=self._words[0], args=self._words[1:])
        async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
            await session.initialize()
            self._session = session
            for tool in (await session.list_tools()).tools:
                self.tools.append(
                    Tool(_schema(tool.model_dump(by_alias=True)), partial(self._call, tool.name))
                )
            self._ready.set()
            await self._stop.wait()

    def _call(self, name: str, /, **arguments: Any) -> str:
        """The text of a call's result. RuntimeError if the server reports an error."""
        assert self._session is not None
        asked = asyncio.run_coroutine_threadsafe(self._session.call_tool(name, arguments), self._loop)
        result = asked.result(CALL_SECONDS).model_dump(by_alias=True)
        texts = [str(part.get("text", f"({part.get('type')})")) for part in result.get("content") or ()]
        if result.get("isError"):
            raise RuntimeError("\n".join(texts))
        return "\n".join(texts)

    def close(self) -> None:
        """End the server."""
        if not self._loop.is_closed():
            stop: Callable[[], None] = self._stop.set
            self._loop.call_soon_threadsafe(stop)
            self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tool, in the shape of chat APIs."""
    function = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool.get("inputSchema") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _innermost(problem: BaseException) -> str:
    """What went wrong, out of the groups that asyncio wraps it in."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return str(problem) or type(problem).__name__
