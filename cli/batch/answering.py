"""Who answers the rows of `llm batch`: a model in this process, or the machines of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..console import terminal

if TYPE_CHECKING:
    from ...runtime.batch.runner import Batch, Execute
    from ..generation.options import GenerationOptions

DEFAULT_WIDTH = 16

_log = logging.getLogger(__name__)


def contexts_of(width: int) -> int:
    """Whole contexts that `width` answers share the memory of: one for every DEFAULT_WIDTH. Most are short,
    and those that are long wait for each other."""
    return -(-width // DEFAULT_WIDTH)


@dataclass
class Crew:
    """What answers: `execute` does, `width` requests at a time; `digest` is the model's. `begin` is called
    with the batch before it runs."""

    execute: Execute
    width: int
    digest: str
    begin: Callable[[Batch], None] = lambda batch: None


@contextmanager
def answering(
    options: GenerationOptions, name: str, width: int, ray: str | None, embed: bool = False
) -> Iterator[Crew]:
    """The model `name` with room for `width` answers at a time, loaded here, or on each machine of the
    cluster `ray`; to make vectors with `embed`, and if it is made for nothing else."""
    task = "embed" if embed else "auto"
    if ray is not None:
        with _on_cluster(options, name, width, ray, task) as crew:
            yield crew
        return
    from ...runtime.batch.execute import Endpoints

    with closing(options.load(name, parallel=width, contexts=contexts_of(width), task=task)) as loaded:
        yield Crew(Endpoints(loaded, name), width, (loaded.router or loaded).fingerprint)


@contextmanager
def _on_cluster(options: GenerationOptions, name: str, width: int, address: str, task: str) -> Iterator[Crew]:
    from ...runtime.batch.on_ray.cluster import joined, places
    from ...runtime.batch.on_ray.worker import Order
    from ...runtime.batch.on_ray.workers import Workers
    from ...runtime.hub.resolve import resolve
    from ...runtime.serve.on_ray.model_file import ModelFile
    from ..console.progress import Progress

    loading = options.loading(parallel=width, contexts=contexts_of(width), task=task)
    file = ModelFile.of(name, resolve(name, Progress), loading.adapters)
    order = Order(file, loading)
    with redirect_stdout(terminal.ForeignText(_log)), joined(address):
        there = places(loading.device)
        workers = Workers(lambda: places(loading.device), order, width, terminal.remark)

        def begin(batch: Batch) -> None:
            def resized(n: int) -> None:
                batch.width = n

            workers.resized = resized

        machines = "1 worker" if len(there) == 1 else f"{len(there)} workers"
        terminal.remark(f"{machines}: {', '.join(place.name for place in there)}")
        yield Crew(workers, max(1, len(there)) * 2 * workers.depth, file.digest, begin)
