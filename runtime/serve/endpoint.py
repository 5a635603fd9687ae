"""An endpoint: from the bytes of a request to those of its answer, while its client is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

import msgspec

from .call import Call, Serving
from .http.bodies import ClientGone, Receive, checked, parse_object, read_body
from .http.problems import Problem, as_problem, body_of
from .http.sending import Send, Sender, Stream

_log = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)

Handler = Callable[[Call, T], Awaitable[Any]]  # gives what becomes JSON, a Stream, or Plain


class Plain(msgspec.Struct):
    """An answer that is not JSON."""

    body: bytes
    media_type: str
    headers: dict[str, str] | None = None


class Endpoint:
    """An ASGI application for one path. `handler` gets the call and its body as the struct `schema`.

    When the client leaves, the handler is cancelled, and with it every answer that it waits for.
    """

    def __init__(self, serving: Serving, schema: type[T], handler: Handler[T]) -> None:
        self._serving = serving
        self.schema = schema
        self.handler = handler

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        options = self._serving.options
        sender = Sender(send, options.write_seconds)
        call = Call(self._serving, scope["path"], {}, AsyncExitStack())
        try:
            raw = await read_body(receive, options) if scope["method"] == "POST" else b""
            await while_connected(receive, self._respond(call, raw, sender))
        except ClientGone:
            call.gone = True
        except Exception as error:  # noqa: BLE001 - the boundary: all of them become answers
            problem = as_problem(error)
            if sender.status:  # the answer has begun, and its client does not take it: the connection ends
                call.gone = True
                return
            await sender.json(body_of(problem, call.path), problem.status, problem.headers)
        finally:
            scope["kukri.call"] = call  # for the log

    async def _respond(self, call: Call, raw: bytes, sender: Sender) -> None:
        seconds = self._serving.options.request_seconds
        async with call.stack:
            call.fields = parse_object(raw)
            async with asyncio.timeout(seconds):
                result = await self.handler(call, checked(self.schema, call.fields))
            if isinstance(result, Stream):
                await sender.stream(result, seconds)
            elif isinstance(result, Plain):
                await sender.raw(result.body, result.media_type, headers=result.headers)
            else:
                await sender.json(result)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, or until the client has left; raises ClientGone then."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        task.result()
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def error_part(path: str, make: Callable[[dict[str, Any]], bytes]) -> Callable[[Exception], bytes]:
    """What ends a stream in which an error came up: `make` of the error's body."""

    def part(error: Exception) -> bytes:
        problem: Problem = as_problem(error)
        return make(body_of(problem, path))

    return part
