"""A Ray cluster: its machines, and workers on them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ....quant.extras import how_to_install
from ..rows import BatchError
from .worker import Asked, Done, Order, Report, Worker
from .workers import WorkerLost

CLIENT = "ray://"
REACH_SECONDS = 5.0


@dataclass(frozen=True)
class RayPlace:
    """A machine, or a card of one, as Ray numbers them: by the id of its node, and by the card."""

    node: str
    name: str
    n_processors: int
    card: int | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        return self.node, self.card

    def start(self) -> RayWorker:
        return RayWorker(self)


class RayWorker:
    """A worker in an actor, which takes all processors of its place, and its card."""

    def __init__(self, place: RayPlace) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._place = place
        self._actor: Any = (
            ray.remote(Worker)
            .options(
                num_cpus=place.n_processors,
                num_gpus=0 if place.card is None else 1,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=False),
            )
            .remote()
        )

    async def load(self, order: Order) -> Report:
        report: Report = await _answer_of(self._actor.load.remote(order, self._place.n_processors))
        return report

    async def exchange(self, asked: Sequence[Asked]) -> list[Done]:
        done: list[Done] = await _answer_of(self._actor.exchange.remote(asked))
        return done

    def stop(self) -> None:
        """End the worker's process, if it still runs."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self._actor)


async def _answer_of(reference: Awaitable[Any]) -> Any:
    """What an actor's method gives. Raises WorkerLost, in a few words."""
    import ray

    try:
        return await reference
    except ray.exceptions.ActorUnavailableError:
        raise WorkerLost("it cannot be reached") from None
    except ray.exceptions.ActorDiedError as problem:
        raise WorkerLost(_why_it_died(str(problem))) from None
    except ray.exceptions.RayError as problem:
        cause = getattr(problem, "cause", None) or problem
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        raise WorkerLost(f"{lines[-1] if lines else type(cause).__name__:.300}") from None


def _why_it_died(text: str) -> str:
    for line in text.splitlines():
        if "No module named" in line:  # kukri is not installed there, or not with all that it needs
            return line.strip()
    return "its machine is gone" if "node has died" in text else "its process ended"


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Within the block this process belongs to the cluster of an address: "auto", or that of its head.

    Raises BatchError if there is none, or no Ray.
    """
    try:
        import ray
    except ImportError:
        raise BatchError(f"--ray needs Ray: {how_to_install('ray')}") from None
    if address.startswith(CLIENT):
        raise BatchError(f"--ray {address}: run it on a machine of the cluster, with --ray auto")
    if address != "auto":
        _check_reachable(address)
    with _own_signals(), contextlib.chdir(os.sep):  # workers import from the folder that this is called in
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError, AssertionError) as problem:
            raise BatchError(f"--ray {address}: {_why(problem, address)}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """BatchError at once for an address that nobody listens at; Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise BatchError(
            f"--ray takes the address of a cluster's head, such as 10.0.0.1:6379, or auto, not {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as problem:
        raise BatchError(f"--ray {address}: cannot be reached ({problem})") from None


def _why(problem: Exception, address: str) -> str:
    if isinstance(problem, ConnectionError):
        return (
            "no Ray runs here; `ray start` makes this machine one of a cluster"
            if address == "auto"
            else "there is no cluster, or this machine is none of it"
        )
    return (str(problem).splitlines() or [type(problem).__name__])[0][:300]


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of this process, which Ray would replace."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def places(device: str = "auto") -> list[RayPlace]:
    """The machines that are there, each card of one by itself unless the device is a CPU."""
    import ray

    found: list[RayPlace] = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        name = node.get("NodeName") or node["NodeManagerAddress"]
        resources = node["Resources"]
        n_processors = int(resources.get("CPU", 0))
        n_cards = 0 if device in ("cpu", "reference") else int(resources.get("GPU", 0))
        found += [
            RayPlace(
                node["NodeID"], f"{name} card {card}" if n_cards > 1 else name, n_processors // n_cards, card
            )
            for card in range(n_cards)
        ]
        if not n_cards and n_processors and device != "cuda":
            found.append(RayPlace(node["NodeID"], name, n_processors))
    return found
