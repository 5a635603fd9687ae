"""Whether a program can run on an NVIDIA GPU: what the devices "auto" and "cuda" mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...quant.errors import UnsupportedModel
from ..engine.split import weight_bytes
from ..engine.state import state_bytes
from ..ops import Program
from .memory_check import MemoryNeed, cache_bytes_per_token
from .options import LoadOptions

if TYPE_CHECKING:
    from ..cuda.driver.device import Device

CUDA_OVERHEAD = 700_000_000  # bytes of GPU memory for activations, kernels and the driver


def open_device(index: int) -> Device:
    """The GPU of that number. Raises CudaError."""
    from ..cuda.driver.device import Device

    return Device(index=index) if index else Device()


def cuda_memory_need(program: Program, kv_type: str) -> MemoryNeed:
    """The GPU memory that a program needs. ValueError for a KV cache type that the CUDA machine has not."""
    from ..cuda.lowering.support import device_bytes
    from ..cuda.pages import cache_type

    per_token = cache_bytes_per_token(program.cache_layers, cache_type(program, kv_type))
    weights = weight_bytes(program, device_bytes)
    return MemoryNeed(weights + CUDA_OVERHEAD, per_token, state_bytes(program.state_layers))


def open_cuda_device(options: LoadOptions, program: Program, warn: Callable[[str], None]) -> Device | None:
    """The GPU that is to run `program`, the first one that the options name, or None if the CPU runs it.

    With device "auto", a GPU that cannot be used, or not for this program, is a warning; so is a missing one,
    if `options.gpu_layers` asks for it. With "cuda" these are errors: CudaUnavailable, UnsupportedModel, or
    ValueError for the type of the KV cache.
    """
    if options.device not in ("auto", "cuda"):
        return None
    from ..cuda.driver.errors import CudaError, CudaUnavailable, NoCudaDevice

    try:
        device = open_device(options.devices[0] if options.devices else 0)
    except CudaError as problem:
        if options.device == "cuda":
            raise CudaUnavailable(f"{problem}; --device cpu runs on the CPU") from None
        if options.gpu_layers is not None or not isinstance(problem, NoCudaDevice):
            warn(f"running on the CPU: {problem}")
        return None
    # Imported here, so that a machine without a GPU does not wait for these modules.
    from ..cuda.compile.kernel import compiled_kernels, compiler_version, missing_compiler
    from ..cuda.lowering.support import check_supported
    from ..cuda.pages import cache_type

    try:
        if compiler_version() is None and not compiled_kernels(device.capability):
            raise CudaUnavailable(missing_compiler())
        check_supported(program)
        cache_type(program, options.kv_type)
    except (UnsupportedModel, ValueError, CudaUnavailable) as problem:
        name = device.name
        device.close()
        if options.device == "cuda":
            raise
        warn(cpu_instead(name, problem))
        return None
    return device


def check_cuda_device() -> None:
    """Raise CudaUnavailable unless this process can use an NVIDIA GPU."""
    from ..cuda.driver.device import CudaError, CudaUnavailable, Device

    try:
        Device().close()
    except CudaError as problem:
        raise CudaUnavailable(f"{problem}; --device cpu runs on the CPU") from None


def cpu_instead(name: str, problem: Exception) -> str:
    """The warning that the CPU runs a model although there is a GPU called `name`."""
    return f"running on the CPU, not on the {name}: {problem}"


def gpu_memory() -> int | None:
    """Bytes of memory of the GPU that "auto" would use; None if there is none that can compile kernels.

    No CUDA context is made, which is what takes time.
    """
    from ..cuda.driver.device import total_memory

    found = total_memory()
    if found is None:
        return None
    from ..cuda.compile.kernel import compiler_version

    return found if compiler_version() is not None else None
