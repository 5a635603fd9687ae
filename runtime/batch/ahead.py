"""Reading ahead in a thread, so that a pipe that is slow holds nothing up."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator

from .rows import Row

AHEAD = 1024  # rows that are read and not taken
WAIT_SECONDS = 0.02  # between two looks for a row

_Item = Row | BaseException | None  # None: the end


class RowsAhead:
    """The rows of an iterator, which a thread of its own reads. For one event loop."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self.ended = False
        self._rows = rows
        self._items: queue.Queue[_Item] = queue.Queue(AHEAD)
        self._stopped = False
        threading.Thread(target=self._read, name="batch rows", daemon=True).start()

    def _read(self) -> None:
        last: _Item = None
        try:
            for row in self._rows:
                self._put(row)
                if self._stopped:
                    return
        except Exception as error:  # noqa: BLE001 - it is raised where the rows are taken
            last = error
        self._put(last)

    def _put(self, item: _Item) -> None:
        while not self._stopped:
            try:
                self._items.put(item, timeout=0.2)
                return
            except queue.Full:
                pass

    def take(self) -> Row | None:
        """A row that is there; None if there is none, now or for good. Raises what reading raised."""
        if self.ended:
            return None
        try:
            return self._taken(self._items.get_nowait())
        except queue.Empty:
            return None

    async def wait(self) -> Row | None:
        """The next row; None at the end."""
        while (row := self.take()) is None and not self.ended:
            await asyncio.sleep(WAIT_SECONDS)
        return row

    def _taken(self, item: _Item) -> Row | None:
        if isinstance(item, Row):
            return item
        self.ended = True
        if item is not None:
            raise item
        return None

    def stop(self) -> None:
        """Let the thread end."""
        self._stopped = True
