"""Several answers of one request, in the order in which their parts come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from ..answers.answer import Answer
from ..answers.events import AnswerEvent
from .call import Call


async def merged(call: Call, answers: Sequence[Answer]) -> AsyncIterator[tuple[int, list[AnswerEvent]]]:
    """Batches of events, each with the number of its answer."""
    if len(answers) == 1:
        async for batch in call.batches(answers[0]):
            yield 0, batch
        return
    there: asyncio.Queue[tuple[int, list[AnswerEvent]] | Exception | None] = asyncio.Queue()

    async def follow(index: int, answer: Answer) -> None:
        try:
            async for batch in call.batches(answer):
                there.put_nowait((index, batch))
            there.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - raised where the batches are read
            there.put_nowait(error)

    tasks = [asyncio.create_task(follow(i, answer)) for i, answer in enumerate(answers)]
    try:
        n_left = len(tasks)
        while n_left:
            found = await there.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                n_left -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
