"""What a CUDA stream runs: kernel launches, graphs of launches, and events that measure time."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass

from .errors import CudaError
from .library import Library

_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_…


class _Attribute(ctypes.Structure):
    _fields_ = [("id", c_uint), ("padding", c_uint), ("value", c_int * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("n_attributes", c_uint),
    ]


@dataclass(frozen=True)
class Launch:
    """A kernel launch: the driver's function handle, grid, threads of a block (one-dimensional), bytes of
    dynamic shared memory, and the packed parameters.

    `early` allows programmatic dependent launch: blocks may start before the previous launch of the stream
    has ended, and the kernel itself waits for it (see `ptx.wait_for_grid`). `name` is for messages and
    profiles. `cluster` consecutive blocks of grid x run at the same time and read each other's shared memory.
    """

    name: str
    function: int
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    arguments: bytes
    early: bool = False
    cluster: int = 1

    def put(self, library: Library, stream: c_void_p) -> None:
        """Enqueue the launch. Raises CudaError with the kernel's name."""
        buffer = ctypes.create_string_buffer(self.arguments, len(self.arguments))
        size = c_size_t(len(self.arguments))
        extra = (c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(buffer), _BUFFER_SIZE, ctypes.addressof(size), _END
        )
        wanted = [_Attribute(_PROGRAMMATIC, 0, (c_int * 16)(1))] if self.early else []
        if self.cluster > 1:
            wanted.append(_Attribute(_CLUSTER, 0, (c_int * 16)(self.cluster, 1, 1)))
        attributes = (_Attribute * len(wanted))(*wanted)
        config = _Config(
            (c_uint * 3)(*self.grid),
            (c_uint * 3)(self.threads, 1, 1),
            self.shared_bytes,
            stream,
            ctypes.addressof(attributes) if wanted else None,
            len(wanted),
        )
        try:
            library.call("cuLaunchKernelEx", byref(config), c_void_p(self.function), None, extra)
        except CudaError as problem:
            raise CudaError(f"{problem} (kernel {self.name})") from None


class Graph:
    """A captured CUDA graph: a list of launches and copies that one driver call enqueues."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.executable = c_void_p()

    def close(self) -> None:
        """Destroy the graph."""
        self._library.code("cuGraphExecDestroy", self.executable)


class Event:
    """A CUDA event: a time stamp that the GPU takes when the stream reaches it; without `timed`, a mark only,
    for which other streams can wait.
    """

    def __init__(self, library: Library, stream: c_void_p, timed: bool = True) -> None:
        self._library, self._stream = library, stream
        self._event = c_void_p()
        library.call("cuEventCreate", byref(self._event), 0 if timed else _DISABLE_TIMING)

    def record(self) -> None:
        """Enqueue the event."""
        self._library.call("cuEventRecord", self._event, self._stream)

    def hold(self, stream: c_void_p) -> None:
        """Let the later work of another stream wait for the event."""
        self._library.call("cuStreamWaitEvent", stream, self._event, 0)

    def seconds_since(self, start: Event) -> float:
        """Wait for both events; returns the seconds between them by the GPU's clock."""
        elapsed = c_float()
        self._library.call("cuEventSynchronize", self._event)
        self._library.call("cuEventElapsedTime", byref(elapsed), start._event, self._event)
        return elapsed.value / 1000
