"""Placing a model on several NVIDIA GPUs: which of them, and how its work is divided among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...quant.errors import UnsupportedModel
from ..engine.split import balanced_cuts, cuts, layer_bytes, split_at
from ..engine.tensor_split import tensor_parts
from ..ops import Program
from .cuda_device import open_device
from .memory_check import NotEnoughMemory

if TYPE_CHECKING:
    from ..cuda.chain import CudaChain
    from ..cuda.driver.device import Device
    from ..cuda.lowering.cards import CardGroup
    from ..cuda.machine import CudaMachine
    from .model import Model
    from .placing import Placing

CUDA_PREFILL_ROWS = 1024  # rows of a prefill step on one GPU, or on several that share every layer
LAYERS_PREFILL_ROWS = 512  # of a step where GPUs have a share of the layers: while one computes a chunk of
# a prompt, the one in front computes the next chunk


def on_cards(placing: Placing, first: Device, numbers: Sequence[int]) -> Model:
    """The model on the GPUs of these numbers, of which the first is open already.

    They share the work of every layer, or with the split mode "layers" each has a part of the layers; with
    "auto" the latter only where the former is not possible or needs more memory. Raises NotEnoughMemory,
    CudaError, and with "tensors" UnsupportedModel for a model that cannot be shared in this way; then all of
    them are closed.
    """
    devices = [first]
    try:
        devices += [open_device(number) for number in numbers[1:]]
        shares = _shares_of_layers(placing, devices)
        return _by_tensors(placing, devices, *shares) if shares else _by_layers(placing, devices)
    except BaseException:
        for device in devices:
            device.close()
        raise


def on_all_cards(placing: Placing, first: Device) -> Model | None:
    """The model on all GPUs there are, if these are several and together have room for it; else None.

    `first` stays open then. Raises CudaError.
    """
    from ..cuda.driver.device import count_devices

    numbers = range(count_devices())
    if placing.options.devices is not None or placing.mtp is not None or len(numbers) < 2:
        return None
    if not _fits_together(placing, [open_device(number) for number in numbers[1:]], first):
        return None
    placing.warn(
        f"the {first.name} has no room for all of {placing.source.name}: it runs on all {len(numbers)} cards"
    )
    return on_cards(placing, first, numbers)


def _fits_together(placing: Placing, others: Sequence[Device], first: Device) -> bool:
    """Whether GPUs have room for parts of the model. Closes the `others`."""
    try:
        contexts(placing, by_layers(placing.program, 1 + len(others)), [first, *others])
    except NotEnoughMemory:
        return False
    finally:
        for device in others:
            device.close()
        first.use()
    return True


def by_layers(program: Program, n: int) -> list[Program]:
    """A program in up to n parts of consecutive layers that take about the same time."""
    return split_at(program, balanced_cuts(layer_bytes(program), cuts(program), n))


def contexts(placing: Placing, parts: Sequence[Program], devices: Sequence[Device]) -> int:
    """The context for which each part fits on its GPU; the first one has the draft model as well. Raises
    NotEnoughMemory."""
    context, said = placing.context, ""

    def warn(text: str) -> None:
        nonlocal said
        said = text

    for part, device in zip(parts, devices, strict=False):
        need = placing.cuda_need(part)
        if placing.draft is not None and device is devices[0]:
            need = need.beside(placing.draft.cuda_need(placing.draft.program))
        device.use()
        # One line is enough: it is about the card that has least room.
        memory, shrunk = (
            f"memory of the {device.name} {device.index}",
            replace(placing, context=context, warn=warn),
        )
        context = shrunk.fitting_context(need, device.memory()[0], memory)
    if said:
        placing.warn(said)
    return context


def _shares_of_layers(placing: Placing, devices: Sequence[Device]) -> tuple[list[Program], int] | None:
    """The programs of GPUs that share every layer, and the context for which they fit; None if the GPUs have
    whole layers each. Raises UnsupportedModel and NotEnoughMemory with the split mode "tensors"."""
    mode = placing.options.split_mode
    if mode == "layers":
        return None
    try:
        parts = tensor_parts(placing.program, len(devices))
        _check_reach(devices)
        return parts, contexts(placing, parts, devices)
    except (UnsupportedModel, NotEnoughMemory):
        if mode == "tensors":
            raise
        return None


def _check_reach(devices: Sequence[Device]) -> None:
    """Raises UnsupportedModel if a GPU cannot read the memory of another one."""
    for device in devices:
        for other in devices:
            if not device.reaches(other):
                raise UnsupportedModel(
                    f"cards {device.index} and {other.index} cannot share the layers of a model: they do not "
                    "reach each other's memory"
                )


def _by_tensors(placing: Placing, devices: Sequence[Device], parts: Sequence[Program], context: int) -> Model:
    from ..cuda.team import CudaTeam

    rows = placing.max_rows(context, CUDA_PREFILL_ROWS)

    def make(part: Program, device: Device, group: CardGroup) -> CudaMachine:
        device.use()
        return placing.cuda_machine(device, part, context, rows, group)

    team = CudaTeam(placing.program, parts, devices, make)
    return placing.model(team, context, team.max_rows)


def _by_layers(placing: Placing, devices: Sequence[Device]) -> Model:
    from ..cuda.chain import CudaChain

    parts = by_layers(placing.program, len(devices))
    context = contexts(placing, parts, devices)
    rows = placing.max_rows(context, LAYERS_PREFILL_ROWS)
    for device in devices[len(parts) :]:
        device.close()
    if len(parts) == 1:  # of a model that cannot be cut
        machine = placing.cuda_machine(devices[0], parts[0], context, rows)
        return placing.model(machine, context, machine.max_rows)
    pairs = zip(parts, devices, strict=False)
    machines = []
    for part, device in pairs:
        device.use()
        machines.append(placing.cuda_machine(device, part, context, rows))
    chain: CudaChain = CudaChain(machines)
    return placing.model(chain, context, chain.max_rows)
