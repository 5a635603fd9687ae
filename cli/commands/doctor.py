"""`llm doctor`: CPU, SIMD level, memory, GPU, caches and versions of this machine."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ... import __version__
from ...quant.extras import how_to_install
from ...quant.home import home
from ...quant.units import human_bytes
from ...runtime.hub import cache
from ..console import terminal
from ..console.table import pairs
from ..console.wording import count

_PACKAGES = ("numba", "llvmlite", "numpy", "gguf", "safetensors", "huggingface-hub", "jinja2")


def doctor() -> None:
    """Show CPU, SIMD level, memory, GPU, caches and versions."""
    rows = [
        ("kukri", f"{__version__}, Python {platform.python_version()}, {platform.platform()}"),
        ("packages", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)),
        ("CPU", _or_error(_cpu)),
        ("cores", _or_error(_cores)),
        ("SIMD", _or_error(_simd)),
        ("memory", _or_error(_memory)),
        ("GPU", _or_error(_gpu)),
        ("GPU kernels", _or_error(_gpu_kernels)),
        ("models", _or_error(lambda: _folder(home() / "models"))),
        ("Hub cache", _or_error(lambda: _folder(cache.cache_folder()))),
        ("kernels", _or_error(_kernels)),
    ]
    terminal.write(pairs(rows))


def _or_error(find: Callable[[], str]) -> str:
    """The result of `find`, or its error as a line: the report goes on whatever fails."""
    try:
        return find()
    except Exception as problem:  # noqa: BLE001 - whatever it is, the report goes on
        return f"cannot tell: {type(problem).__name__}: {problem}"


def _version(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _cpu() -> str:
    from ...runtime.cpu.processors import cpu_name

    return cpu_name()


def _cores() -> str:
    from ...runtime.cpu.processors import default_threads

    text = (
        f"{count(default_threads(), 'thread')} by default, {count(os.cpu_count() or 1, 'logical processor')}"
    )
    if (nodes := numa_nodes()) > 1:
        text += (
            f", {nodes} NUMA nodes (numactl --cpunodebind=0 --membind=0 llm … may be faster for small models)"
        )
    return text


def numa_nodes(root: Path = Path("/")) -> int:
    """Parts of the machine with a memory of their own that this process may run on; 1 if not known.

    `root` stands in for the file system in tests.
    """
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    found = 0
    for path in (root / "sys/devices/system/node").glob("node[0-9]*/cpulist"):
        parts = [part.split("-") for part in path.read_text().strip().split(",") if part]  # "0-3,8"
        found += any(cpu in own for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1))
    return max(1, found)


def _simd() -> str:
    from ...quant.jit.levels import LANES, supported_levels
    from ...runtime.cpu.matrix_tiles import level_in_use

    return f"{level_in_use()}, {LANES} lanes (this CPU offers {', '.join(supported_levels())})"


def _memory() -> str:
    from ...runtime.model.memory_check import available_memory

    available = available_memory()
    return "not known" if available is None else f"{human_bytes(available)} available"


def _gpu() -> str:
    """The GPU that `--device cuda` uses, or why there is none."""
    from ...runtime.cuda.driver.device import CudaError, Device

    try:
        device = Device()
    except CudaError as problem:
        return f"none: {problem}"
    free, total = (human_bytes(n) for n in device.memory())
    version, (major, minor) = device.driver_version(), device.capability
    device.close()
    kind = f"compute capability {major}.{minor}, driver for CUDA {version}"
    return f"{device.name}, {free} of {total} free, {kind}"


def _gpu_kernels() -> str:
    """The number of kernels compiled for the device, and whether a compiler is installed."""
    from ...runtime.cuda.compile.kernel import compiled_kernels, compiler_version
    from ...runtime.cuda.driver.device import CudaError, Device

    compiler = compiler_version()
    more = f"numba-cuda {compiler} compiles others" if compiler else f"others need {how_to_install('cuda')}"
    try:
        device = Device()
    except CudaError:
        return f"none, {more}"
    device.close()
    return f"{compiled_kernels(device.capability) or 'none'} compiled for this GPU, {more}"


def _kernels() -> str:
    from ...quant.jit.kernel_cache import cache_folder

    return _folder(cache_folder())


def _folder(path: Path) -> str:
    """A folder, whether it is writable, and its free space."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            state = "writable"
    except OSError as problem:
        state = f"NOT writable ({problem.strerror})"
    return f"{path}, {state}, {human_bytes(shutil.disk_usage(existing).free)} free"
