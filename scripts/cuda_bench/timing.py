"""Times of launches and copies on the card, for bench_cuda.py."""

from __future__ import annotations

import numpy as np

from kukri.quant.formats import FORMATS
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.launch import Launch


def seconds(device: Device, launches: list[Launch], repeats: int = 20) -> float:
    """The time of launches that follow each other, in a graph."""
    with device.capture() as graph:
        for launch in launches:
            device.launch(launch)
    times = []
    for _ in range(repeats):
        start, end = device.event(), device.event()
        start.record()
        device.run(graph)
        end.record()
        times.append(end.seconds_since(start))
    graph.close()
    return float(np.median(times))


def copy_bandwidth(device: Device) -> float:
    size = 2 << 30
    a, b = device.allocate(size), device.allocate(size)
    times = []
    for _ in range(10):
        start, end = device.event(), device.event()
        start.record()
        device.copy(a, b, size)
        end.record()
        times.append(end.seconds_since(start))
    return 2 * size / float(np.median(times))


def product_bytes(name: str) -> float:
    """Bytes of weights that a product reads, as many as in a file, by the name of its launch."""
    *_, kind, size = name.split()
    form = FORMATS[kind]
    rows, width = (int(n) for n in size.split("x"))
    return rows * width * form.bits_per_weight / 8
