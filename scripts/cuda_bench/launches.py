"""What it costs to go from op to op: see `bench_cuda.py launches`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kukri.runtime.cuda.compile.kernel import ENTRY, compiled, pack_arguments
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.launch import Launch
from kukri.runtime.cuda.ptx import atomic_add, barrier, fence, launch_dependents, thread, wait_for_grid

OPS, THREADS = 161, 256  # as many as a step of 32 layers has


def one_op(counter: int) -> None:
    launch_dependents()
    wait_for_grid()
    if thread() == 0:
        atomic_add(counter, 1)


def all_ops(counter: int, blocks: int, ops: int) -> None:
    """The same number of times in one launch, whose blocks wait for each other in between."""
    for op in range(ops):
        barrier()
        if thread() == 0:
            fence()
            atomic_add(counter, 1)
            while atomic_add(counter, 0) < blocks * (op + 1):
                pass
            fence()
        barrier()


def launches() -> None:
    """µs from one op that does nothing to the next, each on all multiprocessors: as launches of a graph, as
    launches of which the next may start early, and as parts of one launch that wait for all others.
    """
    device = Device()
    blocks = device.multiprocessors
    counter = device.allocate(4)

    def prepared(kernel: Callable[..., None], *arguments: int) -> Launch:
        code = device.load(device.assemble(compiled(kernel, {}, device.capability, THREADS)), ENTRY)
        return Launch(kernel.__name__, code, (blocks, 1, 1), THREADS, 0, pack_arguments(*arguments))

    single = prepared(one_op, counter)
    together = prepared(all_ops, counter, blocks, OPS)
    for name, list_ in (
        ("launches", [single] * OPS),
        ("launches that start early", [replace(single, early=True)] * OPS),
        ("one launch", [together]),
    ):
        with device.capture() as graph:
            for launch in list_:
                device.launch(launch)
        times = []
        for _ in range(20):
            device.clear(counter, 4)
            start, end = device.event(), device.event()
            start.record()
            device.run(graph)
            end.record()
            times.append(end.seconds_since(start))
        count = np.zeros(1, np.int32)
        device.download(count, counter)
        device.wait()
        assert count[0] == blocks * OPS
        graph.close()
        print(f"{name}: {np.median(times) / OPS * 1e6:.2f} us an op")
    device.close()
