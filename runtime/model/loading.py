"""Loading a model: its files, the machine or the two that run it, and the memory that these may take."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ...cli.console.terminal import human_bytes
from ..cuda.driver.errors import CudaError
from ..engine.cache import PAGE_SIZE, PageTable
from ..engine.engine import SAVED_STATES, Engine
from ..engine.split import SplitMachine, cuts, split, weight_bytes
from ..engine.state import state_bytes
from ..ops import MatMul, MoE, Program
from ..program.build import build_program
from ..weights.binding import Weights
from .cuda_device import card_need, on_cpu, open_card
from .memory_check import MemoryNeed, NotEnoughMemory, available_memory, cache_bytes_per_token
from .model import Model
from .source import Source, open_source

if TYPE_CHECKING:
    from ..cpu.machine import CpuMachine
    from ..cuda.driver.device import Device
    from ..cuda.machine import CudaMachine
    from .model import AnyMachine

DEVICES = ("auto", "cpu", "cuda", "reference")
DEFAULT_CONTEXT = 8192  # tokens; the cache's memory is only committed as it fills
LEAST_DEFAULT_CONTEXT = 1024  # where memory is short, the default shrinks down to this
CHUNK_WORK = 2.5e10  # multiply-adds a thread in one prefill step: about a quarter of a second
CARD_ROWS = 1024  # of a prefill step on a card
MAX_THREADS = 1024
REFERENCE_KEEPS = 3 << 30  # bytes of float32 matrices


def load_model(
    path: str | os.PathLike[str],
    device: str = "auto",
    context: int | None = None,
    threads: int | None = None,
    kv_type: str = "auto",
    warn: Callable[[str], None] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    text: bool = True,
    gpu_layers: int | None = None,
) -> Model:
    """Load a GGUF file or a Hugging Face folder (config.json and safetensors).

    - `device`: "cpu", "cuda" (the first NVIDIA card), "reference" (NumPy in float32: slow, for comparison),
      or "auto", which is "cuda" where there is a card that can run the model, or as many of its last layers
      as it has room for, else "cpu".
    - `context`: tokens that prompt and answer may have together. Default: what the model was trained
      for, at most 8192, and less, down to 1024, if memory is short.
    - `threads`: of the CPU machine; default: the physical cores this process
      may use, within a container's quota.
    - `kv_type`: how keys and values are stored: "f16", "f32", "q8_0", "q4_0" or "auto", see `CpuMachine`.
    - `warn`: called with one line for things worth knowing; default: Python's `warnings`.
    - `progress`: called with (what is being done, how much of it is done, of how much) while loading.
    - `text`: False leaves the tokenizer alone, and ids are the only way in.
    - `gpu_layers`: so many layers, the last ones, and the logits on the card, the others on the CPU; default:
      all.

    Raises FileNotFoundError, DamagedFile or UnsupportedModel (a DamagedFile) for the file,
    TokenizerError for its tokenizer, CudaError if the card cannot be used, NotEnoughMemory before anything
    is loaded that would not fit, and ValueError for arguments out of range.
    """
    path = Path(path)
    warn = warn or (lambda message: warnings.warn(message, stacklevel=5))
    _check_arguments(device, context, threads, gpu_layers)
    source = open_source(path, text)
    if source.builtin:
        warn(f"{source.name} ships no chat template; it gets the built-in one for {source.builtin}")
    weights = Weights(source.config, source.tensors)
    program = build_program(source.config, weights)
    if weights.skipped:
        warn(f"{source.name} is more than a text model; not loaded: {', '.join(sorted(weights.skipped))}")
    shrinks, context = context is None, _usual_context(source, context, warn)
    loading = Placing(source, program, context, shrinks, threads, kv_type, warn, progress)
    if device == "reference":
        return loading.in_numpy()
    n_layers = len(program.layers) - 1
    cut = 0 if gpu_layers is None else _cut(program, n_layers - gpu_layers)
    if device == "cpu" or cut >= n_layers:
        return loading.on_the_cpu()
    part = split(program, cut)[1] if cut else program
    card = open_card(device, part, kv_type, warn, expected=gpu_layers is not None)
    if card is None:
        return loading.on_the_cpu()
    try:
        if cut:
            return loading.on_both(card, cut)
        try:
            return loading.on_the_card(card)
        except NotEnoughMemory as problem:
            fitting = loading.fitting_cut(card)
            n = n_layers - fitting
            if not n or gpu_layers is not None:
                raise
            if device == "cuda":
                raise NotEnoughMemory(f"{problem}; or --gpu-layers {n}, and the rest on the CPU") from None
            free = human_bytes(card.memory()[0])
            warn(f"the {card.name} has no room for all of {source.name}, {free} are free: the last {n} of "
                 f"{n_layers} layers run on it, the others on the CPU")  # fmt: skip
            return loading.on_both(card, fitting)
    except (CudaError, NotEnoughMemory) as problem:
        card.close()
        if device == "cuda":
            raise
        warn(on_cpu(card.name, problem))
    except BaseException:
        card.close()
        raise
    return loading.on_the_cpu()


@dataclass(frozen=True)
class Placing:
    """A model that is ready to be put on machines. `shrinks`: the context may be less if memory is short; the
    rest as for `load_model`.
    """

    source: Source
    program: Program
    context: int
    shrinks: bool
    threads: int | None
    kv_type: str
    warn: Callable[[str], None]
    progress: Callable[[str, int, int], None] | None

    def in_numpy(self) -> Model:
        from ..reference.machine import ReferenceMachine

        copied = min(4 * sum(prod(tensor.shape) for tensor in self.source.tensors.values()), REFERENCE_KEEPS)
        need = MemoryNeed(
            self.source.held_bytes + copied,
            cache_bytes_per_token(self.program.cache_layers, "f32"),
            (1 + SAVED_STATES) * state_bytes(self.program.state_layers),
        )
        context = self._fitting_context(need, available_memory())
        machine = ReferenceMachine(self.program, _pages(context), keep_bytes=copied)
        return self._model(machine, context, _prefill_chunk(self.program, 1))

    def on_the_cpu(self) -> Model:
        context = self._fitting_context(self._cpu_need(self.program), available_memory())
        machine = self._cpu_machine(self.program, context)
        return self._model(machine, context, _prefill_chunk(self.program, machine.n_threads))

    def on_the_card(self, card: Device) -> Model:
        need = card_need(self.program, self.kv_type)
        context = self._fitting_context(need, card.memory()[0], f"memory of the {card.name}")
        machine = self._card_machine(card, self.program, context, CARD_ROWS)
        return self._model(machine, context, machine.max_rows)

    def on_both(self, card: Device, cut: int) -> Model:
        """The layers from number `cut` on and the logits on the card. Raises NotEnoughMemory."""
        context = self.context
        front, back = split(self.program, cut)
        card_need(back, self.kv_type).check(
            self._layers(back), context, card.memory()[0], f"memory of the {card.name}"
        )
        if (available := available_memory()) is not None:
            self._cpu_need(front).check(self._layers(front), context, available)
        on_card = self._card_machine(card, back, context, 512)
        on_cpu = self._cpu_machine(front, context)
        chunk = _prefill_chunk(front, on_cpu.n_threads)
        return self._model(SplitMachine(on_cpu, on_card), context, chunk)

    def fitting_cut(self, card: Device) -> int:
        """The first layer of as many as the card has room for; the number of layers if for none."""
        free = card.memory()[0]
        for cut in cuts(self.program):
            if card_need(split(self.program, cut)[1], self.kv_type).total(self.context) <= free:
                return cut
        return len(self.program.layers) - 1

    def _fitting_context(self, need: MemoryNeed, available: int | None, what: str = "memory") -> int:
        """The context, or less, if it may be and memory is short. Raises NotEnoughMemory."""
        context = self.context
        if available is None:
            return context
        if self.shrinks:
            fitting = need.largest_context(available)
            if min(context, LEAST_DEFAULT_CONTEXT) <= fitting < context:
                self.warn(f"{what} is short: the context is {fitting} tokens instead of {context}")
                context = fitting
        need.check(self.source.name, context, available, what)
        return context

    def _layers(self, part: Program) -> str:
        return f"{self.source.name} ({len(part.layers) - 1} of its {len(self.program.layers) - 1} layers)"

    def _cpu_need(self, part: Program) -> MemoryNeed:
        from ..cpu.machine import cache_type

        layers = [replace(layer, value_dim=None) for layer in part.cache_layers]  # values beside their keys
        held = self.source.held_bytes
        if part is not self.program:
            held = round(held * weight_bytes(part) / max(1, weight_bytes(self.program)))
        return MemoryNeed(
            held,
            cache_bytes_per_token(layers, cache_type(part, self.kv_type).lower()),
            (1 + SAVED_STATES) * state_bytes(part.state_layers),
        )

    def _cpu_machine(self, part: Program, context: int) -> CpuMachine:
        from ..cpu.machine import CpuMachine, default_threads

        return CpuMachine(
            part,
            _pages(context),
            threads=self.threads or default_threads(),
            kv_type=self.kv_type,
            release=self.source.release,
            progress=self.progress,
        )

    def _card_machine(self, card: Device, part: Program, context: int, max_rows: int) -> CudaMachine:
        from ..cuda.machine import CudaMachine

        return CudaMachine(
            part,
            _pages(context),
            max_rows=max_rows,
            kv_type=self.kv_type,
            release=self.source.release,
            progress=self.progress,
            device=card,
        )

    def _model(self, machine: AnyMachine, context: int, chunk: int) -> Model:
        """The model with an engine that feeds `machine` prompts in steps of `chunk` rows."""
        source = self.source
        engine = Engine(
            machine,
            PageTable(_pages(context)),
            source.config,
            source.end_ids,
            context=context,
            n_tokens=source.tokenizer.vocab_size if source.tokenizer else None,
            prefill_chunk=chunk,
            original_context=self.program.original_context,
            states=machine.states,
        )
        return Model(source, machine, engine)


def _pages(context: int) -> int:
    return -(-context // PAGE_SIZE)


def _cut(program: Program, layer: int) -> int:
    """The first layer on the card: `layer`, or a later one where the program cannot be cut there; 0: all are
    on the card, the number of layers: none is.
    """
    if layer <= 0:
        return 0
    return min((cut for cut in cuts(program) if cut >= layer), default=len(program.layers) - 1)


def _usual_context(source: Source, context: int | None, warn: Callable[[str], None]) -> int:
    """The context that was asked for, or the default one; ValueError for more than the model knows."""
    trained, most = source.config.context_length, source.config.max_context
    if context is None:
        return min(trained, DEFAULT_CONTEXT) if trained > 0 else DEFAULT_CONTEXT
    if most is not None and context > most:
        raise ValueError(f"{source.name} knows {most} positions, so the context cannot be {context} tokens")
    if 0 < trained < context:
        warn(f"{source.name} was trained for {trained} tokens; beyond them its answers may break down")
    return context


def _check_arguments(device: str, context: int | None, threads: int | None, gpu_layers: int | None) -> None:
    if device not in DEVICES:
        raise ValueError(f"unknown device {device!r}; there are {', '.join(DEVICES)}")
    if context is not None and context < 1:
        raise ValueError(f"the context must be at least one token, not {context}")
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads must be from 1 to {MAX_THREADS}, not {threads}")
    if gpu_layers is not None and gpu_layers < 0:
        raise ValueError(f"there cannot be {gpu_layers} layers on the card")


def _prefill_chunk(program: Program, threads: int) -> int:
    """Rows of a prefill step: few enough that Ctrl-C is answered soon, whatever the model's size."""
    weights = 0
    for op in program.ops:
        if isinstance(op, MatMul) and not op.out.logits_rows:
            weights += prod(op.weight.shape)
        elif isinstance(op, MoE):  # of which a row meets only those chosen for it
            weights += op.experts.width * sum(prod(m[0].shape) for m in (op.gate, op.up, op.down) if m)
    return max(64, min(512, int(CHUNK_WORK * threads / max(1, weights)) // 32 * 32))
