"""POST /inspect/timeline: the rows of a model's last steps. It says how much is computed, never of what."""

from __future__ import annotations

from dataclasses import asdict
from time import perf_counter
from typing import Any

import msgspec

from ..call import Call


class TimelineRequest(msgspec.Struct):
    """Whose steps, and behind the step of which number; the first request begins to have them noted."""

    model: str | None = None
    since: int = -1


async def timeline(call: Call, request: TimelineRequest) -> dict[str, Any]:
    """The last steps of the batch: rows by sequence, prefill and decode, pages. Steps are noted for half a
    minute after each request; times are in seconds, on the clock whose time is `now`."""
    entry = call.serving.pool.find(request.model)
    if entry.model is None:
        return {"model": entry.name, "loaded": False, "now": perf_counter(), "steps": []}
    engine = entry.model.engine
    engine.timeline.watch()
    use = engine.use()
    return {
        "model": entry.name,
        "loaded": True,
        "now": perf_counter(),
        "pages": use.pages,
        "page_tokens": engine.table.page_size,
        "slots": engine.table.max_sequences,
        "running": use.running,
        "waiting": use.waiting,
        "active_pages": use.active_pages,
        "free_pages": use.free_pages,
        "steps": [asdict(step) for step in engine.timeline.since(request.since)],
    }
