"""The application on one machine of the cluster, asked through Ray instead of a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

from ...model.options import LoadOptions
from ..application import app
from ..http.options import ServeOptions
from .model_file import ModelFile

AHEAD = 8  # messages of an answer that wait for their reader

Head = tuple[int, list[tuple[bytes, bytes]]]  # status and headers


class Replica:
    """Answers requests with a model, which is loaded when this is made."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, file: ModelFile, name: str, options: ServeOptions, load: LoadOptions
    ) -> None:
        path = await asyncio.to_thread(file.here)
        self._application = app({name: path}, options, load, preload=False)
        pool = self._application.state.pool
        entry = pool.find(None)
        pool.begin(entry)
        assert entry.loading is not None
        await entry.loading

    async def answer(self, scope: dict[str, Any], body: bytes, prefix: str) -> AsyncIterator[Head | bytes]:
        """The answer to an HTTP request with this ASGI scope: its head, then the parts of its body.

        `prefix` is for the router. When the reader stops, the request ends as one whose client has left.
        """
        messages: asyncio.Queue[Head | bytes | None] = asyncio.Queue(AHEAD)
        gone = asyncio.Event()
        taken = False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal taken
            if not taken:
                taken = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                await messages.put((message["status"], list(message.get("headers", ()))))
            elif message.get("body"):
                await messages.put(message["body"])

        async def run() -> None:
            try:
                await self._application(scope, receive, send)
            finally:
                await messages.put(None)

        task = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
            await task
        finally:
            gone.set()
            task.cancel()
