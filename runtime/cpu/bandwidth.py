"""How fast this machine reads memory: the limit that decoding runs against.

Writing a token reads every weight once, so a decode step cannot take less than its bytes divided by what
measured here: all threads at once read a buffer that no cache holds, with the vector loads and the
prefetching that the matmul kernels use, and do nothing with it but one addition a vector.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np

from .abi.records import READ, READ_BLOCK
from .kernels import READ_ALL
from .simd.panels import aligned_empty

LEAST_BYTES, MOST_BYTES = 256 << 20, 2 << 30
USUAL_CACHE = 32 << 20  # where the system does not say
AHEADS = (0, 2048, 4096)  # bytes to prefetch ahead; the best of them counts
RUNS = 8  # of each, some 10 ms long: other programs leave few of them alone


class ReadBandwidth:
    """Measures what `n_threads` threads read out of memory together, in bytes a second.

    The buffer is made and touched once, so that `measure` can be called again and again cheaply. Use as a
    context manager, or `close` it.
    """

    def __init__(self, n_threads: int, n_bytes: int | None = None) -> None:
        n_bytes = buffer_bytes() if n_bytes is None else n_bytes
        part = max(READ_BLOCK, n_bytes // n_threads // READ_BLOCK * READ_BLOCK)
        self.n_bytes = part * n_threads
        self._buffer = aligned_empty(self.n_bytes)
        self._buffer.fill(1)  # memory that was never written is one page of zeros, and stays in the cache
        self._arguments = np.zeros(n_threads, READ)
        for i, arguments in enumerate(self._arguments):
            arguments["address"] = self._buffer.ctypes.data + i * part
            arguments["n_bytes"] = part
        self._pool = ThreadPoolExecutor(n_threads, "kukri-read")
        self._read: Callable[[int, int, int], None] = READ_ALL.compiled.ctypes

    def measure(self, runs: int = RUNS) -> float:
        """The best of `runs` runs with each prefetch distance: other programs can only slow it down."""
        return self.n_bytes / min(self._run(ahead) for ahead in AHEADS for _ in range(runs))

    def _run(self, ahead: int) -> float:
        """Seconds from the first thread's start to the last one's end."""
        self._arguments["ahead"] = ahead
        n_threads = len(self._arguments)
        gate = threading.Barrier(n_threads)
        spans = list(self._pool.map(self._read_part, range(n_threads), [gate] * n_threads))
        return max(end for _, end in spans) - min(start for start, _ in spans)

    def _read_part(self, thread: int, gate: threading.Barrier) -> tuple[float, float]:
        address = self._arguments[thread : thread + 1].ctypes.data
        gate.wait()
        start = perf_counter()
        self._read(address, 0, thread)
        return start, perf_counter()

    def close(self) -> None:
        """End the threads and let the buffer go."""
        self._pool.shutdown()
        self._buffer = np.empty(0, np.uint8)

    def __enter__(self) -> ReadBandwidth:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def buffer_bytes(root: Path = Path("/")) -> int:
    """Eight times the largest cache, so that next to nothing of it is still there in the next run."""
    return max(LEAST_BYTES, min(MOST_BYTES, 8 * (_largest_cache(root) or USUAL_CACHE)))


def _largest_cache(root: Path) -> int:
    """Bytes of the largest cache of the first processor as Linux tells it ("32768K"); 0 if it does not.

    `root` stands in for the file system in tests.
    """
    sizes = [0]
    for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        digits = text.rstrip("KM")
        sizes.append(int(digits) * unit if digits.isdecimal() else 0)
    return max(sizes)
