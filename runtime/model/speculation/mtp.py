"""The layer for multi-token prediction of a model, loaded beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ....quant.errors import DamagedFile, UnsupportedModel
from ...engine.cache import PageTable
from ...engine.speculation.mtp import MtpDrafter
from ...engine.split import weight_bytes
from ...ops import Program
from ...program.mtp import build_mtp_program
from ...weights.mtp import mtp_model
from ..source import Source

if TYPE_CHECKING:
    from ..placing import Placing


def open_mtp(source: Source) -> tuple[Program, Literal["normed", "residual"]]:
    """The program of a model's MTP layer, and which hidden state of the model it reads.

    Raises UnsupportedModel if the files have no such layer, or not all of it.
    """
    mtp = mtp_model(source.config, source.tensors)
    try:
        program = build_mtp_program(mtp)
    except DamagedFile as problem:
        raise UnsupportedModel(
            f"the layer for multi-token prediction in {source.name} is not complete: {problem}"
        ) from None
    return program, "normed" if mtp.reads_normed else "residual"


def load_mtp(placing: Placing, program: Program, machine: Any, table: PageTable) -> tuple[Any, MtpDrafter]:
    """A machine for the layer of `program`, of the kind of the model's `machine` and with the pages of the
    same table, and what drafts by it."""
    from ...cpu.machine import CpuMachine

    own: Any
    if placing.options.device == "reference":
        from ...reference.machine import ReferenceMachine

        own = ReferenceMachine(program, table.n_pages, max_sequences=table.max_sequences)
    elif isinstance(machine, CpuMachine):
        own = CpuMachine(
            program,
            table.n_pages,
            max_sequences=table.max_sequences,
            kv_type=machine.kv_type,
            release=placing.source.release,
            progress=placing.progress,
            team=machine.team,
        )
    else:
        from ...cuda.machine import CudaMachine

        own = CudaMachine(
            program,
            table.n_pages,
            max_sequences=table.max_sequences,
            kv_type=machine.kv_type,
            release=placing.source.release,
            progress=placing.progress,
        )
    tokenizer = placing.source.tokenizer
    vocab = placing.source.config.vocab_size
    drafter = MtpDrafter(
        own,
        machine,
        table,
        n_tokens=min(vocab, tokenizer.vocab_size) if tokenizer else vocab,
        relative_cost=weight_bytes(program) / max(1, weight_bytes(placing.program)),
    )
    return own, drafter
