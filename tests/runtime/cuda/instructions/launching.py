"""How the checks of this folder launch kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

# Called with kernel, grid, threads, arguments, shared bytes, constants and cluster.
Launch = Callable[..., None]


def on_the_card(device: Any) -> Launch:
    """How to launch on a card: arrays are copied there, and back."""

    from kukri.runtime.cuda.compile.kernel import ENTRY, compiled, pack_arguments
    from kukri.runtime.cuda.driver.launch import Launch as DriverLaunch

    def launch(
        kernel: Callable[..., None],
        grid: tuple[int, ...],
        threads: int,
        arguments: list[Any],
        shared: int,
        constants: dict[str, int] | None = None,
        cluster: int = 1,
    ) -> None:
        text = compiled(kernel, constants or {}, device.capability, threads)
        code = device.load(device.assemble(text), ENTRY)
        assert len(inspect.signature(kernel).parameters) == len(arguments)
        held = [(a, device.allocate(a.nbytes)) for a in arguments]
        for array, address in held:
            device.upload(address, array)
        x, y, z = (*grid, 1, 1)[:3]
        packed = pack_arguments(*(address for _, address in held))
        device.launch(DriverLaunch(kernel.__name__, code, (x, y, z), threads, shared, packed, False, cluster))
        for array, address in held:
            device.download(array, address)
        device.wait()

    return launch
