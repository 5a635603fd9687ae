"""Usage: how much of an engine's slots and pages is taken at a moment."""

from __future__ import annotations

from dataclasses import dataclass

from .scheduler import Scheduler
from .sequence import NO_SLOT


@dataclass(frozen=True)
class Usage:
    """Sequences in slots and in the queue; pages that the former hold, pages that hold nothing, and all.

    The others hold what ended sequences have left for those that begin alike.
    """

    running: int
    waiting: int
    active_pages: int
    free_pages: int
    pages: int


def usage(scheduler: Scheduler) -> Usage:
    """The usage between two steps of the scheduler, or of the step that runs."""
    table = scheduler.table
    with scheduler.lock:
        held = [table.pages(each.slot) for each in scheduler.running if each.slot != NO_SLOT]
        active = len(set().union(*held))
        return Usage(len(scheduler.running), len(scheduler.waiting), active, table.free_pages, table.n_pages)
