"""An NVIDIA GPU, through the CUDA driver: one device, its primary context and one stream.

Every failed driver call raises `CudaError` with the call's name (see `library.py`).

Source: CUDA Driver API.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import numpy as np

from .errors import CudaError, CudaOutOfMemory, CudaUnavailable, NoCudaDevice
from .launch import Event, Graph, Launch
from .library import Library, driver_functions

_COMPUTE_MAJOR, _COMPUTE_MINOR, _MULTIPROCESSORS, _SHARED_OPTIN = 75, 76, 16, 97
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CUBIN, _PTX = 0, 1  # CUjitInputType
_ERROR_LOG, _ERROR_LOG_BYTES, _TARGET = 5, 6, 9  # CUjit_option
_COMPUTE_90A = 0x10000 + 90  # CUjit_target
_NO_DEVICE = 100
_PEER_ACCESS_ENABLED = 704

MIN_CAPABILITY = (8, 0)  # the first with mma.sync of int8 m16n8k32 and with cp.async
WARPGROUP_DRIVER = (12, 0)  # CUDA version that knows wgmma, which only compute capability 9.0 has
MIN_DRIVER = (11, 8)  # CUDA version that knows cuLaunchKernelEx and PTX 7.8
BLACKWELL_DRIVER = (12, 9)  # CUDA version that knows compute capability 10 and above
SCHEDULE_AUTO, SPIN, BLOCK = 0, 1, 4  # CU_CTX_SCHED_…: how a thread waits for the GPU


def total_memory() -> int | None:
    """Bytes of memory of the first GPU; None if there is none or it is too old. Makes no context."""
    functions = driver_functions()
    if functions is None:
        return None
    library = Library(functions)
    count, device, n_bytes, major = c_int(), c_int(), c_size_t(), c_int()
    calls = (
        ("cuInit", 0),
        ("cuDeviceGetCount", byref(count)),
        ("cuDeviceGet", byref(device), 0),
        ("cuDeviceGetAttribute", byref(major), _COMPUTE_MAJOR, device),
        ("cuDeviceTotalMem_v2", byref(n_bytes), device),
    )
    for name, *arguments in calls:
        if library.code(name, *arguments):
            return None
    return n_bytes.value if count.value and major.value >= MIN_CAPABILITY[0] else None


def count_devices() -> int:
    """The number of GPUs that this process may use; 0 without a driver. Makes no context."""
    functions, count = driver_functions(), c_int()
    if functions is None:
        return 0
    library = Library(functions)
    failed = library.code("cuInit", 0) or library.code("cuDeviceGetCount", byref(count))
    return 0 if failed else count.value


class Device:
    """A GPU, with a stream, allocations, modules and pinned host memory that `close` frees.

    `index` is its number among those that the process may use. `waiting` is SCHEDULE_AUTO, SPIN or BLOCK: how
    a thread waits for the GPU; a spinning thread wakes up sooner. It has no effect if another user in this
    process has activated the primary context. `warpgroups` says whether wgmma can be used. Raises
    NoCudaDevice, or CudaUnavailable if the GPU or its driver is too old.
    """

    def __init__(self, waiting: int = SPIN, index: int = 0) -> None:
        functions = driver_functions()
        if functions is None:
            raise NoCudaDevice("no NVIDIA driver was found on this machine")
        self._library = Library(functions)
        self._call = self._library.call
        code = self._library.code("cuInit", 0)
        if code:
            kind = NoCudaDevice if code == _NO_DEVICE else CudaUnavailable
            raise kind(f"the NVIDIA driver finds no card that it can use ({self._library.meaning(code)})")
        count, device, context = c_int(), c_int(), c_void_p()
        self._call("cuDeviceGetCount", byref(count))
        if not count.value:
            raise NoCudaDevice("there is no NVIDIA card that this process may use")
        if index >= count.value:
            raise NoCudaDevice(f"there is no NVIDIA card {index}: they are numbered 0 to {count.value - 1}")
        self._call("cuDeviceGet", byref(device), index)
        self._device, self.index = device, index
        self.capability = self._attribute(_COMPUTE_MAJOR), self._attribute(_COMPUTE_MINOR)
        self._check_versions()
        flags, active = c_uint(), c_int()
        self._call("cuDevicePrimaryCtxGetState", device, byref(flags), byref(active))
        if not active.value:
            self._library.code("cuDevicePrimaryCtxSetFlags_v2", device, c_uint(waiting))
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._context: c_void_p | None = context
        self.use()
        self.multiprocessors = self._attribute(_MULTIPROCESSORS)
        self.shared_bytes = self._attribute(_SHARED_OPTIN)  # of dynamic shared memory that a block may have
        version = tuple(map(int, self.driver_version().split(".")))
        self.warpgroups = self.capability == (9, 0) and version >= WARPGROUP_DRIVER
        stream = c_void_p()
        self._call("cuStreamCreate", byref(stream), 1)  # CU_STREAM_NON_BLOCKING
        self._stream = stream
        self._allocated: list[int] = []
        self._modules: list[c_void_p] = []
        self._pinned: list[int] = []

    def _check_versions(self) -> None:
        """Raises CudaUnavailable if the compute capability or the driver is too old for the kernels."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, 256, self._device)
        self.name = text.value.decode(errors="replace")
        if self.capability < MIN_CAPABILITY:
            raise CudaUnavailable(
                f"the {self.name} is too old: it has compute capability {_dotted(self.capability)}, "
                f"{_dotted(MIN_CAPABILITY)} is needed"
            )
        version = self.driver_version()
        required = _dotted(BLACKWELL_DRIVER if self.capability >= (10, 0) else MIN_DRIVER)
        if tuple(map(int, version.split("."))) < tuple(map(int, required.split("."))):
            raise CudaUnavailable(
                f"the NVIDIA driver is too old for the {self.name}: "
                f"it knows CUDA {version}, {required} is needed"
            )

    def use(self) -> None:
        """Make this device's context current in the calling thread."""
        self._call("cuCtxSetCurrent", self._context)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of GPU memory."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def driver_version(self) -> str:
        """The newest CUDA version that the driver supports, such as "13.0"."""
        version = c_int()
        self._call("cuDriverGetVersion", byref(version))
        return f"{version.value // 1000}.{version.value % 1000 // 10}"

    def allocate(self, n_bytes: int) -> int:
        """Allocate GPU memory; returns its address. Raises CudaOutOfMemory."""
        address = c_uint64()
        try:
            self._call("cuMemAlloc_v2", byref(address), c_size_t(max(1, n_bytes)))
        except CudaOutOfMemory:
            free, total = (f"{n / 1e9:.1f} GB" for n in self.memory())
            raise CudaOutOfMemory(
                f"the {self.name} has no room for {n_bytes / 1e9:.2g} GB more: {free} of {total} are free"
            ) from None
        self._allocated.append(address.value)
        return address.value

    def free(self, address: int) -> None:
        """Free an allocation, which no unfinished work of the stream may use."""
        self._allocated.remove(address)
        self._call("cuMemFree_v2", c_uint64(address))

    def pinned(self, n_bytes: int) -> np.ndarray:
        """Page-locked host memory, uint8 [n_bytes], which copies and kernels of the GPU access directly."""
        address = c_void_p()
        self._call("cuMemAllocHost_v2", byref(address), c_size_t(max(1, n_bytes)))
        assert address.value
        self._pinned.append(address.value)
        return np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(address.value))

    def upload(self, address: int, source: np.ndarray) -> None:
        """Enqueue a copy of an array to GPU memory; the array must stay unchanged until the stream is
        done.
        """
        self._call(
            "cuMemcpyHtoDAsync_v2", c_uint64(address), _pointer(source), c_size_t(source.nbytes), self._stream
        )

    def download(self, out: np.ndarray, address: int) -> None:
        """Enqueue a copy from GPU memory into an array."""
        self._call(
            "cuMemcpyDtoHAsync_v2", _pointer(out), c_uint64(address), c_size_t(out.nbytes), self._stream
        )

    def copy(self, address: int, source: int, n_bytes: int) -> None:
        """Enqueue a copy within GPU memory."""
        self._call(
            "cuMemcpyDtoDAsync_v2", c_uint64(address), c_uint64(source), c_size_t(n_bytes), self._stream
        )

    def reaches(self, other: Device) -> bool:
        """Whether kernels of this GPU may read and write the memory of `other`, which the call turns on."""
        if self.index == other.index:
            return True
        able = c_int()
        self._call("cuDeviceCanAccessPeer", byref(able), self._device, other._device)
        if not able.value:
            return False
        self.use()
        return self._library.code("cuCtxEnablePeerAccess", other._context, 0) in (0, _PEER_ACCESS_ENABLED)

    def copy_from(self, other: Device, address: int, source: int, n_bytes: int) -> None:
        """Enqueue a copy from the memory of another GPU, by way of the host if neither reaches the other."""
        to, origin, size = c_uint64(address), c_uint64(source), c_size_t(n_bytes)
        self._call("cuMemcpyPeerAsync", to, self._context, origin, other._context, size, self._stream)

    def wait_for(self, event: Event) -> None:
        """Let later work of the stream start only when `event`, of any GPU, has been reached."""
        event.hold(self._stream)

    def clear(self, address: int, n_bytes: int) -> None:
        """Enqueue filling GPU memory with zeros."""
        self._call("cuMemsetD8Async", c_uint64(address), 0, c_size_t(n_bytes), self._stream)

    def wait(self) -> None:
        """Wait until the stream has finished all enqueued work."""
        self._call("cuStreamSynchronize", self._stream)

    def assemble(self, ptx: str) -> bytes:
        """Assemble PTX into machine code (a cubin) for this device. Raises CudaError with the assembler's
        log.
        """
        try:
            return self._linked(ptx)
        except CudaError:
            if ".target sm_90a" not in ptx:
                raise
            return self._linked(ptx, _COMPUTE_90A)  # for drivers that do not take the target from the PTX

    def _linked(self, ptx: str, target: int | None = None) -> bytes:
        log = ctypes.create_string_buffer(4096)
        options = (c_int * 3)(_ERROR_LOG, _ERROR_LOG_BYTES, _TARGET)
        values = (c_void_p * 3)(ctypes.cast(log, c_void_p), c_void_p(len(log)), c_void_p(target))
        n_options = 2 if target is None else 3
        state, image, size = c_void_p(), c_void_p(), c_size_t()
        self._call("cuLinkCreate_v2", n_options, options, values, byref(state))
        try:
            text = ptx.encode() + b"\0"
            try:
                self._call(
                    "cuLinkAddData_v2", state, _PTX, text, c_size_t(len(text)), b"kernel", 0, None, None
                )
                self._call("cuLinkComplete", state, byref(image), byref(size))
            except CudaError as problem:
                raise CudaError(f"{problem}: {log.value.decode(errors='replace').strip()}") from None
            return ctypes.string_at(image.value or 0, size.value)
        finally:
            self._library.code("cuLinkDestroy", state)

    def load(self, code: bytes, name: str, shared_bytes: int = 0) -> int:
        """Load the kernel `name` of a cubin, for launches with up to `shared_bytes` of dynamic shared memory.

        Returns the driver's function handle.
        """
        module, function = c_void_p(), c_void_p()
        self._call("cuModuleLoadData", byref(module), code)
        self._modules.append(module)
        self._call("cuModuleGetFunction", byref(function), module, name.encode())
        if shared_bytes > 48 << 10:
            self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, c_int(shared_bytes))
        assert function.value
        return function.value

    def launch(self, launch: Launch) -> None:
        """Enqueue a kernel launch."""
        launch.put(self._library, self._stream)

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Capture the work that the `with` block enqueues into a graph instead of running it.

        The graph can be run once the block has ended.
        """
        graph = Graph(self._library)
        self._call("cuStreamBeginCapture_v2", self._stream, 2)  # CU_STREAM_CAPTURE_MODE_RELAXED
        try:
            yield graph
        except BaseException:
            self._library.code("cuStreamEndCapture", self._stream, byref(c_void_p()))
            raise
        captured = c_void_p()
        self._call("cuStreamEndCapture", self._stream, byref(captured))
        try:
            self._call("cuGraphInstantiateWithFlags", byref(graph.executable), captured, c_uint64(0))
        finally:
            self._library.code("cuGraphDestroy", captured)

    def run(self, graph: Graph) -> None:
        """Enqueue a graph."""
        self._call("cuGraphLaunch", graph.executable, self._stream)

    def event(self, timed: bool = True) -> Event:
        """A new event of the stream; one that is not `timed` costs less."""
        self.use()  # it belongs to the context in which it is made
        return Event(self._library, self._stream, timed)

    def close(self) -> None:
        """Free all GPU and pinned memory, modules, the stream and the context."""
        if self._context is None:
            return
        self.use()
        self._library.code("cuStreamSynchronize", self._stream)
        for module in self._modules:
            self._library.code("cuModuleUnload", module)
        for address in self._allocated:
            self._library.code("cuMemFree_v2", c_uint64(address))
        for pinned in self._pinned:
            self._library.code("cuMemFreeHost", c_void_p(pinned))
        self._library.code("cuStreamDestroy_v2", self._stream)
        self._library.code("cuDevicePrimaryCtxRelease_v2", self._device)
        self._context = None

    def _attribute(self, attribute: int) -> int:
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), attribute, self._device)
        return value.value


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _pointer(array: np.ndarray) -> c_void_p:
    assert array.flags.c_contiguous
    return c_void_p(array.ctypes.data)
