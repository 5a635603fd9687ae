"""The card: one device, its primary context, and one stream are used.

A failure is a `CudaError` with a line that says what was asked for (see `library.py`).

Source: CUDA Driver API.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import numpy as np

from .errors import CudaError, CudaOutOfMemory, CudaUnavailable, NoCard
from .launch import Event, Graph, Launch
from .library import Library, driver_functions

_COMPUTE_MAJOR, _COMPUTE_MINOR, _MULTIPROCESSORS, _SHARED_OPTIN = 75, 76, 16, 97
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CUBIN, _PTX = 0, 1  # CUjitInputType
_ERROR_LOG, _ERROR_LOG_BYTES, _TARGET = 5, 6, 9  # CUjit_option
_COMPUTE_90A = 0x10000 + 90  # CUjit_target
_NO_DEVICE = 100

LEAST_CAPABILITY = (8, 0)  # for products of whole numbers on tensor cores, and copies beside the work
WARPGROUP_DRIVER = (12, 0)  # for products of warpgroups, which cards of capability 9.0 have and no others
LEAST_DRIVER = (11, 8)  # CUDA version, for launches with attributes and for the version of PTX
BLACKWELL_DRIVER = (12, 9)  # for compute capability 10 and above
DRIVERS_CHOICE, SPIN, BLOCK = 0, 1, 4  # how a thread waits for the card: CU_CTX_SCHED_…


class Device:
    """The first card, its stream, and memory on it. CudaUnavailable if there is none.

    `waiting`: how a thread waits for it, of the constants above, unless somebody else in this process uses
    the card already. A thread that spins wakes up sooner than one that blocks.
    """

    def __init__(self, waiting: int = SPIN) -> None:
        functions = driver_functions()
        if functions is None:
            raise NoCard("no NVIDIA driver was found on this machine")
        self._library = Library(functions)
        self._call = self._library.call
        code = self._library.code("cuInit", 0)
        if code:
            kind = NoCard if code == _NO_DEVICE else CudaUnavailable
            raise kind(f"the NVIDIA driver finds no card that it can use ({self._library.meaning(code)})")
        count, device, context = c_int(), c_int(), c_void_p()
        self._call("cuDeviceGetCount", byref(count))
        if not count.value:
            raise NoCard("there is no NVIDIA card that this process may use")
        self._call("cuDeviceGet", byref(device), 0)
        self._device = device
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
        self.shared_bytes = self._attribute(_SHARED_OPTIN)  # that a block may have
        known = tuple(map(int, self.driver_version().split(".")))
        self.warpgroups = self.capability == (9, 0) and known >= WARPGROUP_DRIVER
        stream = c_void_p()
        self._call("cuStreamCreate", byref(stream), 1)  # 1: does not wait for the default stream
        self._stream = stream
        self._allocated: list[int] = []
        self._modules: list[c_void_p] = []
        self._pinned: list[int] = []

    def _check_versions(self) -> None:
        """CudaUnavailable for a card, or a driver, that kernels are not made for."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, 256, self._device)
        self.name = text.value.decode(errors="replace")
        if self.capability < LEAST_CAPABILITY:
            raise CudaUnavailable(
                f"the {self.name} is too old: it has compute capability {_dotted(self.capability)}, "
                f"{_dotted(LEAST_CAPABILITY)} is needed"
            )
        version = self.driver_version()
        least = _dotted(BLACKWELL_DRIVER if self.capability >= (10, 0) else LEAST_DRIVER)
        if tuple(map(int, version.split("."))) < tuple(map(int, least.split("."))):
            raise CudaUnavailable(
                f"the NVIDIA driver is too old for the {self.name}: "
                f"it knows CUDA {version}, {least} is needed"
            )

    def use(self) -> None:
        """Make this card the calling thread's."""
        self._call("cuCtxSetCurrent", self._context)

    def memory(self) -> tuple[int, int]:
        """Bytes of the card's memory that are free, and that there are."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def driver_version(self) -> str:
        """The CUDA version that the driver knows: "13.0"."""
        found = c_int()
        self._call("cuDriverGetVersion", byref(found))
        return f"{found.value // 1000}.{found.value % 1000 // 10}"

    def allocate(self, n_bytes: int) -> int:
        """The address of `n_bytes` on the card. Raises CudaOutOfMemory."""
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
        """Give back what `allocate` gave; the stream must be done with it."""
        self._allocated.remove(address)
        self._call("cuMemFree_v2", c_uint64(address))

    def pinned(self, n_bytes: int) -> np.ndarray:
        """Memory of this machine, uint8 [n_bytes], that the card copies to and from by itself."""
        address = c_void_p()
        self._call("cuMemAllocHost_v2", byref(address), c_size_t(max(1, n_bytes)))
        assert address.value
        self._pinned.append(address.value)
        return np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(address.value))

    def upload(self, address: int, source: np.ndarray) -> None:
        """Copy an array to the card, behind what the stream is doing; it must stay until that is done."""
        self._call(
            "cuMemcpyHtoDAsync_v2", c_uint64(address), _pointer(source), c_size_t(source.nbytes), self._stream
        )

    def download(self, out: np.ndarray, address: int) -> None:
        """Copy from the card into an array, behind what the stream is doing."""
        self._call(
            "cuMemcpyDtoHAsync_v2", _pointer(out), c_uint64(address), c_size_t(out.nbytes), self._stream
        )

    def copy(self, address: int, source: int, n_bytes: int) -> None:
        """Copy within the card."""
        self._call(
            "cuMemcpyDtoDAsync_v2", c_uint64(address), c_uint64(source), c_size_t(n_bytes), self._stream
        )

    def clear(self, address: int, n_bytes: int) -> None:
        """Fill memory of the card with zeros."""
        self._call("cuMemsetD8Async", c_uint64(address), 0, c_size_t(n_bytes), self._stream)

    def wait(self) -> None:
        """Until the stream is done."""
        self._call("cuStreamSynchronize", self._stream)

    def assemble(self, ptx: str) -> bytes:
        """Machine code for this card."""
        try:
            return self._linked(ptx)
        except CudaError:
            if ".target sm_90a" not in ptx:
                raise
            return self._linked(ptx, _COMPUTE_90A)  # a driver that does not look at that by itself

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
        """A kernel out of machine code, for launches with up to `shared_bytes` of shared memory."""
        module, function = c_void_p(), c_void_p()
        self._call("cuModuleLoadData", byref(module), code)
        self._modules.append(module)
        self._call("cuModuleGetFunction", byref(function), module, name.encode())
        if shared_bytes > 48 << 10:
            self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, c_int(shared_bytes))
        assert function.value
        return function.value

    def launch(self, what: Launch) -> None:
        """Put a launch into the stream."""
        what.put(self._library, self._stream)

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """What is put into the stream within this goes into a graph instead, which is ready after it."""
        graph = Graph(self._library)
        self._call("cuStreamBeginCapture_v2", self._stream, 2)  # 2: other streams are not looked at
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
        """Put a graph into the stream."""
        self._call("cuGraphLaunch", graph.executable, self._stream)

    def event(self) -> Event:
        return Event(self._library, self._stream)

    def close(self) -> None:
        """Let everything on the card go."""
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

    def _attribute(self, which: int) -> int:
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), which, self._device)
        return value.value


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _pointer(array: np.ndarray) -> c_void_p:
    assert array.flags.c_contiguous
    return c_void_p(array.ctypes.data)
