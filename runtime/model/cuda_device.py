"""Whether a model runs on an NVIDIA card: what `--device auto` and `cuda` mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...quant.errors import UnsupportedModel
from ..engine.split import weight_bytes
from ..engine.state import state_bytes
from ..ops import Program
from .memory_check import MemoryNeed, cache_bytes_per_token

if TYPE_CHECKING:
    from ..cuda.driver.device import Device

CARD_OVERHEAD = 700_000_000  # bytes of activations, kernels, and the driver's own


def card_need(program: Program, kv_type: str) -> MemoryNeed:
    """What a program needs of a card's memory; ValueError for a cache that the card cannot have."""
    from ..cuda.machine import cache_type

    per_token = cache_bytes_per_token(program.cache_layers, cache_type(program, kv_type))
    return MemoryNeed(weight_bytes(program) + CARD_OVERHEAD, per_token, state_bytes(program.state_layers))


def open_card(
    device: str, program: Program, kv_type: str, warn: Callable[[str], None], expected: bool = False
) -> Device | None:
    """The card that a program is to run on; None: the CPU runs it.

    With "auto", a machine without a card says nothing, unless one was `expected`, and a card that cannot be
    used, or not for the program, is a warning. With "cuda" that is UnsupportedModel, ValueError for the
    cache's type, or CudaUnavailable.
    """
    if device not in ("auto", "cuda"):
        return None
    from ..cuda.driver.device import CudaError, CudaUnavailable, Device, NoCudaDevice

    try:
        card = Device()
    except CudaError as problem:
        if device == "cuda":
            raise CudaUnavailable(f"{problem}; --device cpu runs on the CPU") from None
        if expected or not isinstance(problem, NoCudaDevice):
            warn(f"running on the CPU: {problem}")
        return None
    from ..cuda.compile.kernel import MISSING, compiled_kernels, compiler_version
    from ..cuda.lowering.support import check_supported
    from ..cuda.machine import cache_type  # which most starts, having no card, do without

    try:
        if compiler_version() is None and not compiled_kernels(card.capability):
            raise CudaUnavailable(MISSING)
        check_supported(program)
        cache_type(program, kv_type)
    except (UnsupportedModel, ValueError, CudaUnavailable) as problem:
        name = card.name
        card.close()
        if device == "cuda":
            raise
        warn(on_cpu(name, problem))
        return None
    return card


def check_card() -> None:
    """Raise CudaUnavailable unless there is a card."""
    from ..cuda.driver.device import CudaError, CudaUnavailable, Device

    try:
        Device().close()
    except CudaError as problem:
        raise CudaUnavailable(f"{problem}; --device cpu runs on the CPU") from None


def on_cpu(name: str, problem: Exception) -> str:
    """The line that says that a card is left alone."""
    return f"running on the CPU, not on the {name}: {problem}"
