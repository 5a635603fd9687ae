"""Placing a mixture of experts on a GPU and the CPU: experts of some layers stay in the computer's memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..engine.split import weight_bytes
from ..ops import MoE, Program
from .memory_check import MemoryNeed, available_memory

if TYPE_CHECKING:
    from ..cuda.driver.device import Device
    from .model import Model
    from .placing import Placing

PREFILL_ROWS = 512  # of a step: experts are read once for all rows that have chosen them


def beside_cpu_experts(placing: Placing, device: Device) -> Model | None:
    """The model on the GPU, but for the experts of the first `cpu_moe` layers that have some; None for a
    model without experts. Raises NotEnoughMemory and CudaError.
    """
    from ..cpu.experts import CpuExperts
    from ..cuda.hosted import HostedCudaMachine

    options, program = placing.options, placing.program
    mixtures = [op for op in program.ops if isinstance(op, MoE)][: options.cpu_moe]
    if not mixtures:
        placing.warn(f"{placing.source.name} has no experts that could stay on the CPU")
        return None
    experts, rest = apart(program, mixtures)
    need = placing.cuda_need(rest)
    if placing.draft is not None:
        need = need.beside(placing.draft.cuda_need(placing.draft.program))
    context = placing.fitting_context(need, device.memory()[0], f"memory of the {device.name}")
    name = f"{placing.source.name} (the experts of {len(mixtures)} layers)"
    if (available := available_memory()) is not None:
        MemoryNeed(weight_bytes(experts), 0, 0).check(name, context, available)
    host = CpuExperts(
        mixtures, PREFILL_ROWS, options.threads, placing.source.release, placing.progress, device.pinned
    )
    try:
        machine = HostedCudaMachine(
            program,
            placing.pages(context),
            host,
            max_sequences=placing.sequences,
            max_rows=PREFILL_ROWS,
            kv_type=options.kv_type,
            release=placing.source.release,
            progress=placing.progress,
            device=device,
            background=options.background,
        )
    except BaseException:
        host.close()
        raise
    return placing.model(machine, context, machine.max_rows)


def apart(program: Program, mixtures: list[MoE]) -> tuple[Program, Program]:
    """The program's `mixtures`, and all its other ops: to count what they read."""
    chosen = {id(op) for op in mixtures}
    rest = tuple(op for op in program.ops if id(op) not in chosen)
    return replace(program, ops=tuple(mixtures)), replace(program, ops=rest)
