"""Measures the memory read bandwidth of this machine, which bounds the speed of decode.

A decode step reads every weight once, so it cannot take less time than the bytes of the weights divided by
the bandwidth. All threads at once read a buffer larger than any cache, with the vector loads and prefetches
of the matrix kernels and one addition a vector.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np

from .abi.records import READ, READ_BLOCK
from .kernels import SUM_BUFFER
from .simd.panels import aligned_empty

MIN_BYTES, MAX_BYTES = 256 << 20, 2 << 30
DEFAULT_CACHE = 32 << 20  # bytes, where the system does not report its caches
AHEADS = (0, 2048, 4096)  # prefetch distances in bytes; the best of them counts
RUNS = 8  # runs with each distance, about 10 ms each: other programs disturb most of them


class ReadBandwidth:
    """Measures the memory bandwidth of `n_threads` threads together, in bytes a second.

    The buffer of `n_bytes` (by default `buffer_bytes()`) is allocated and touched once, so that `measure` can
    be called repeatedly. Use as a context manager, or call `close`.
    """

    def __init__(self, n_threads: int, n_bytes: int | None = None) -> None:
        n_bytes = buffer_bytes() if n_bytes is None else n_bytes
        part = max(READ_BLOCK, n_bytes // n_threads // READ_BLOCK * READ_BLOCK)
        self.n_bytes = part * n_threads
        self._buffer = aligned_empty(self.n_bytes)
        self._buffer.fill(1)  # untouched memory is one shared page of zeros, which would stay in the cache
        self._arguments = np.zeros(n_threads, READ)
        for i, arguments in enumerate(self._arguments):
            arguments["address"] = self._buffer.ctypes.data + i * part
            arguments["n_bytes"] = part
        self._pool = ThreadPoolExecutor(n_threads, "kukri-read")
        self._read: Callable[[int, int, int], None] = SUM_BUFFER.compiled.ctypes

    def measure(self, runs: int = RUNS) -> float:
        """Bytes a second of the fastest of `runs` runs with each distance: load only slows runs down."""
        return self.n_bytes / min(self._run(ahead) for ahead in AHEADS for _ in range(runs))

    def _run(self, ahead: int) -> float:
        """Seconds from the start of the first thread to the end of the last."""
        self._arguments["ahead"] = ahead
        n_threads = len(self._arguments)
        gate = threading.Barrier(n_threads)
        times = list(self._pool.map(self._read_part, range(n_threads), [gate] * n_threads))
        return max(end for _, end in times) - min(start for start, _ in times)

    def _read_part(self, thread: int, gate: threading.Barrier) -> tuple[float, float]:
        """Read a thread's part of the buffer; (start, end) in seconds."""
        address = self._arguments[thread : thread + 1].ctypes.data
        gate.wait()
        start = perf_counter()
        self._read(address, 0, thread)
        return start, perf_counter()

    def close(self) -> None:
        """End the threads and free the buffer."""
        self._pool.shutdown()
        self._buffer = np.empty(0, np.uint8)

    def __enter__(self) -> ReadBandwidth:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def buffer_bytes(root: Path = Path("/")) -> int:
    """Eight times the largest cache, so that a run finds almost nothing of the buffer in it."""
    return max(MIN_BYTES, min(MAX_BYTES, 8 * (_largest_cache(root) or DEFAULT_CACHE)))


def _largest_cache(root: Path) -> int:
    """Bytes of the largest cache of processor 0 by Linux's sysfs ("32768K"); 0 if it is not there.

    `root` replaces the root of the file system in tests.
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
