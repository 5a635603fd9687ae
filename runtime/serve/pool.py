"""The models that a server was configured with: loaded when first asked for, the least recently used out."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, time
from typing import TypeAlias

from ...quant.units import human_bytes
from ..model.loading import load_model
from ..model.memory_check import OVERHEAD, NotEnoughMemory, available_memory
from ..model.model import Model
from ..model.options import LoadOptions
from ..routing.policy import Route
from ..routing.router import Router
from .http.problems import Problem, busy

_log = logging.getLogger(__name__)

DEFAULT_PARALLEL = 16  # sequences, which share the memory of one context


AnyModel: TypeAlias = str | Path | Model | Route  # of a server: a file or folder, a loaded model, two models


@dataclass(eq=False)
class Entry:
    """A configured model, and whether it is in memory."""

    name: str
    path: Path
    n_bytes: int  # of its files
    created: int  # seconds since 1970: when its file was written
    model: Model | None = None
    n_users: int = 0  # requests that use it now
    used_at: float = 0.0  # on the monotonic clock
    loading: asyncio.Task[Model] | None = None
    stage: tuple[str, int, int] = ("", 0, 0)  # of loading: what, done, of
    owned: bool = True  # loaded here, so that it may be closed here
    task: str = "auto"  # of LoadOptions
    twin: Entry | None = None  # the same model, loaded to make vectors
    route: Route | None = None  # if there are two models, the small one of which is asked

    @property
    def progress(self) -> str:
        """How far loading is, for people."""
        what, done, total = self.stage
        share = f" ({100 * done // total} %)" if total else ""
        return f"{what}{share}" if what else "opening its files"


def sources(models: Mapping[str, AnyModel] | Iterable[str | Path | Model]) -> dict[str, Entry]:
    """An entry for each model, by name. Raises FileNotFoundError, and ValueError for none."""
    found: dict[str, Entry] = {}
    pairs: Iterable[tuple[str, AnyModel]]
    pairs = models.items() if isinstance(models, Mapping) else [(_stem(each), each) for each in models]
    for name, source in pairs:
        if isinstance(source, Model):
            path, model = Path(source.path), source
            found[name] = Entry(name, path, source.n_bytes, int(time()), model, owned=False)
        elif isinstance(source, Route):
            written = int(max(path.stat().st_mtime for path in (source.small, source.large)))
            size = _size(source.small) + _size(source.large)
            found[name] = Entry(name, source.small, size, written, route=source)
        else:
            path = Path(source)
            written = int(path.stat().st_mtime)
            found[name] = Entry(name, path, _size(path), written)
    if not found:
        raise ValueError("a server needs at least one model")
    return found


def _stem(source: str | Path | Model) -> str:
    path = Path(source.path if isinstance(source, Model) else source)
    return path.name if path.is_dir() else path.stem


def _size(path: Path) -> int:
    """Bytes of a model's file or, roughly, of the files in its folder or of the shards beside it."""
    if path.is_dir():
        return sum(each.stat().st_size for each in path.iterdir() if each.is_file())
    stem, sep, _ = path.name.partition("-00001-of-")
    if sep:
        return sum(each.stat().st_size for each in path.parent.glob(f"{stem}-?????-of-*"))
    return os.path.getsize(path)


@dataclass
class ModelPool:
    """Gives requests their models. For one event loop.

    One model is loaded at a time. Before that, models that nobody uses are closed, the least recently used
    first, until the new one fits: into `memory` bytes of files, or into what the machine has left.
    """

    entries: dict[str, Entry]
    load: LoadOptions
    patience: float
    memory: int | None = None
    warn: Callable[[str], None] = _log.warning
    prepare: Callable[[Model], None] = lambda model: None  # what is done with a model that was loaded
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closed: bool = False

    @property
    def all_entries(self) -> list[Entry]:
        """The entries, and those of models that are loaded another time."""
        return [each for entry in self.entries.values() for each in (entry, entry.twin) if each is not None]

    def find(self, name: str | None) -> Entry:
        """The entry that a request means: by its name, by that with ":latest", a folder in front or a file's
        ending, and the first if none is named. Problem 404 for others."""
        if not name:
            return next(iter(self.entries.values()))
        file = name.rpartition("/")[2]
        for wanted in (name, name.removesuffix(":latest"), file, file.removesuffix(".gguf")):
            if wanted in self.entries:
                return self.entries[wanted]
        known = ", ".join(self.entries)
        raise Problem(
            404, f"there is no model {name:.100}; this server has {known}", "model", "model_not_found"
        )

    @asynccontextmanager
    async def use(self, name: str | None, vectors: bool = False) -> AsyncIterator[Model]:
        """The model of this name, which stays in memory while the block runs. One that writes is loaded
        another time for `vectors`: it then has no output matrix.

        Problem 404 for an unknown name, and 503 while it is loaded, after some seconds of patience.
        """
        entry = self.find(name)
        entry.n_users += 1
        try:
            model = await self._loaded(entry)
            if vectors and model.vectors is None and entry.owned:
                entry.twin = entry.twin or replace(
                    entry, model=None, loading=None, n_users=0, task="embed", route=None
                )
                entry.twin.n_users += 1
                try:
                    model = await self._loaded(entry.twin)
                    yield model
                finally:
                    entry.twin.n_users -= 1
                    entry.twin.used_at = monotonic()
            else:
                yield model
        finally:
            entry.n_users -= 1
            entry.used_at = monotonic()

    async def _loaded(self, entry: Entry) -> Model:
        if entry.model is not None:
            return entry.model
        self.begin(entry)
        assert entry.loading is not None
        done, _ = await asyncio.wait({entry.loading}, timeout=self.patience)
        if not done:
            raise busy(f"{entry.name} is being loaded: {entry.progress}")
        return entry.loading.result() if entry.model is None else entry.model

    def begin(self, entry: Entry) -> None:
        """Start to load a model, unless it is there or on its way."""
        if self._closed:
            raise busy("the server is shutting down")
        if entry.model is None and (entry.loading is None or entry.loading.done()):
            entry.loading = asyncio.create_task(self._load(entry))
            entry.loading.add_done_callback(lambda task: self._note_failure(entry, task))

    def _note_failure(self, entry: Entry, loading: asyncio.Task[Model]) -> None:
        """Log that a model cannot be loaded: before the first request nobody else is told."""
        if not loading.cancelled() and (error := loading.exception()) and not self._closed:
            _log.error("%s cannot be loaded: %s", entry.name, error)

    async def _load(self, entry: Entry) -> Model:
        async with self._lock:
            entry.stage = ("waiting for memory", 0, 0)
            while not self._fits(entry):
                if not await self._close_one():
                    break
            while True:
                try:
                    model = await asyncio.to_thread(self._load_now, entry)
                    break
                except NotEnoughMemory:
                    if not await self._close_one():
                        raise
            entry.model, entry.used_at = model, monotonic()
            _log.info("%s is loaded: %s, context %d", entry.name, human_bytes(entry.n_bytes), model.context)
            return model

    def _load_now(self, entry: Entry) -> Model:
        def progress(what: str, done: int, total: int) -> None:
            entry.stage = (what, done, total)
            if self._closed:  # nobody waits for it any more
                raise busy("the server is shutting down")

        options = replace(self.load, task=entry.task)
        model = self._open(entry.path, options, progress)
        if entry.route is not None:
            try:
                model.router = Router(
                    model, self._open(entry.route.large, options, progress), entry.route.policy
                )
            except BaseException:
                model.close()
                raise
        if self._closed:
            model.close()
            raise busy("the server is shutting down")
        return model

    def _open(self, path: Path, options: LoadOptions, progress: Callable[[str, int, int], None]) -> Model:
        """A model of a file or folder, whose engine is at work."""
        shared = options
        if options.parallel is None:  # many may talk at once, in the memory that one would get
            shared = replace(options, parallel=DEFAULT_PARALLEL, contexts=1)
        try:
            model = load_model(path, shared, warn=self.warn, progress=progress)
        except NotEnoughMemory:
            if shared is options:
                raise
            # Recurrent states take as much for each sequence.
            model = load_model(path, options, warn=self.warn, progress=progress)
        self.prepare(model)
        model.engine.start()
        return model

    def _fits(self, entry: Entry) -> bool:
        if self.memory is not None:
            loaded = sum(each.n_bytes for each in self.all_entries if each.model is not None)
            return loaded + entry.n_bytes <= self.memory
        available = available_memory()
        return available is None or entry.n_bytes + 2 * OVERHEAD <= available

    async def _close_one(self) -> bool:
        """Close the model that was used longest ago; False if all are in use."""
        idle = [e for e in self.all_entries if e.model is not None and not e.n_users and e.owned]
        if not idle:
            return False
        await self.unload(min(idle, key=lambda each: each.used_at))
        return True

    async def unload(self, entry: Entry) -> None:
        """Close a model that nobody uses."""
        model, entry.model, entry.loading = entry.model, None, None
        if model is not None:
            _log.info("%s is closed", entry.name)
            await asyncio.to_thread(model.close)

    async def close(self) -> None:
        """Close all models that were loaded here; their requests end."""
        self._closed = True
        for entry in self.all_entries:
            if entry.owned:
                await self.unload(entry)
