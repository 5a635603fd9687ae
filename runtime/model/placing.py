"""Placing a model: which machine runs which of its layers, and whether their memory holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from ...quant.units import human_bytes
from ..cuda.driver.errors import CudaError
from ..engine.cache import PAGE_SIZE, PageTable
from ..engine.engine import Engine
from ..engine.scheduling.known_states import SAVED_STATES
from ..engine.speculation.drafter import Drafter
from ..engine.split import SplitMachine, cuts, split, weight_bytes
from ..engine.state import state_bytes
from ..ops import MatMul, MoE, Program
from .cards import CUDA_PREFILL_ROWS, on_all_cards, on_cards
from .cpu_experts import beside_cpu_experts
from .cuda_device import cpu_instead, cuda_memory_need, open_cuda_device
from .memory_check import MemoryNeed, NotEnoughMemory, available_memory, cache_bytes_per_token
from .model import Model
from .options import DEFAULT_PARALLEL, LoadOptions
from .source import Source

if TYPE_CHECKING:
    from ..cpu.kept_panels import KeptPanels
    from ..cpu.machine import CpuMachine
    from ..cpu.team import Team
    from ..cuda.driver.device import Device
    from ..cuda.lowering.cards import CardGroup
    from ..cuda.machine import CudaMachine
    from .model import AnyMachine

LEAST_DEFAULT_CONTEXT = 1024  # tokens, down to which the default context shrinks where memory is short
TEXTS_AT_ONCE = 32  # in a step that makes vectors
PREFILL_WORK = 2.5e10  # multiply-adds a thread in one prefill step: about a quarter of a second
CPU_ROWS = 512  # of a step on the CPU, at most
SPLIT_PREFILL_ROWS = 512  # the same where the CPU runs the first layers
REFERENCE_BYTES = 3 << 30  # of float32 copies of matrices that the reference machine keeps


@dataclass(frozen=True)
class Placing:
    """A model whose weights are not loaded yet, and the options for its machines.

    `context` is the number of tokens to make room for; it may shrink if `options` names none. `warn` and
    `progress` as for `load_model`. `draft` is a draft model to be loaded with it, whose memory counts as
    well. `max_sequences` and `team` are for a draft model, which has those of its model.
    `mtp` is the program of a layer for multi-token prediction, which runs on the device of all other layers.
    """

    source: Source
    program: Program
    options: LoadOptions
    context: int
    warn: Callable[[str], None]
    progress: Callable[[str, int, int], None] | None
    draft: Placing | None = None
    max_sequences: int | None = None
    team: Team | None = None
    mtp: Program | None = None

    def place(self) -> Model:
        """The model on the device that the options name, or with "auto" on the best one that can run it.

        Errors as for `load_model`.
        """
        if self.options.device == "reference":
            return self._on_reference()
        gpu_layers, n_layers = self.options.gpu_layers, self._n_layers
        cut = 0 if gpu_layers is None else _cut(self.program, n_layers - gpu_layers)
        if self.options.device == "cpu" or cut >= n_layers:
            return self._on_cpu()
        part = split(self.program, cut)[1] if cut else self.program
        device = open_cuda_device(self.options, part, self.warn)
        if device is None:
            return self._on_cpu()
        try:
            if self.options.cpu_moe and (model := beside_cpu_experts(self, device)):
                return model
            return self._on_both(device, cut) if cut else self._on_cuda_or_both(device)
        except (CudaError, NotEnoughMemory) as problem:
            device.close()
            if self.options.device == "cuda":
                raise
            self.warn(cpu_instead(device.name, problem))
        except BaseException:
            device.close()
            raise
        return self._on_cpu()

    @property
    def sequences(self) -> int:
        """The number of sequences that may run at a time."""
        if self.max_sequences is not None:
            return self.max_sequences
        if self.program.vectors:
            return TEXTS_AT_ONCE
        default = 1 if self.program.state_layers else DEFAULT_PARALLEL
        return max(self.options.parallel or default, self.options.beams)

    @property
    def _contexts(self) -> int:
        """The number of whole contexts that the KV cache has room for."""
        return self.options.contexts or self.options.parallel or 1

    def pages(self, context: int) -> int:
        """Pages of the KV cache for contexts of so many tokens. Short texts fill theirs only in part; each
        beam beside the first has a last page of its own."""
        spare = TEXTS_AT_ONCE if self.program.vectors else self.options.beams - 1
        return self._contexts * -(-context // PAGE_SIZE) + spare

    def _state_bytes(self, part: Program) -> int:
        """Bytes of the recurrent states of all sequences and of their saved copies."""
        return self.sequences * (1 + SAVED_STATES) * state_bytes(part.state_layers)

    def cuda_need(self, part: Program) -> MemoryNeed:
        """The memory of a GPU that a part of the program needs."""
        need = cuda_memory_need(part, self.options.kv_type)
        per_token = need.per_token + self._row_bytes(part)
        states = need.states * self.sequences
        return replace(need, per_token=per_token, states=states, contexts=self._contexts)

    def max_rows(self, context: int, rows: int) -> int:
        """Rows of a step: `rows`, but the whole text where its tokens see each other in both directions."""
        return max(rows, context) if self.program.both_ways else rows

    def _row_bytes(self, part: Program) -> int:
        """Bytes of a step's buffers for each token of the context, where a whole text is one step: float32,
        and the same rows in 8 bits or float16."""
        return 6 * sum(b.width for b in part.buffers) if part.both_ways else 0

    @property
    def _n_layers(self) -> int:
        return len(self.program.layers) - 1

    def _on_reference(self) -> Model:
        from ..reference.machine import ReferenceMachine

        context = self.fitting_context(self._with_draft(Placing._reference_need), available_memory())
        n_pages, n_sequences = self.pages(context), self.sequences
        kept = self._reference_copies
        rows = self.max_rows(context, _prefill_rows(self.program, 1))
        machine = ReferenceMachine(
            self.program, n_pages, keep_bytes=kept, max_sequences=n_sequences, max_rows=max(rows, 512)
        )
        return self.model(machine, context, rows)

    @property
    def _reference_copies(self) -> int:
        """Bytes of the float32 copies of matrices that the reference machine keeps."""
        n_weights = sum(prod(tensor.shape) for tensor in self.source.tensors.values())
        return min(4 * n_weights, REFERENCE_BYTES)

    def _reference_need(self) -> MemoryNeed:
        return MemoryNeed(
            self.source.held_bytes + self._reference_copies,
            cache_bytes_per_token(self.program.cache_layers, "f32") + self._row_bytes(self.program),
            self._state_bytes(self.program),
            self._contexts,
        )

    def _with_draft(self, need_of: Callable[[Placing], MemoryNeed]) -> MemoryNeed:
        """The memory that the model needs on a machine, with its draft model on one of the same kind."""
        need = need_of(self)
        if self.mtp is not None:  # its weights are among the file's, the output matrix is there twice
            n_bytes = 4.0 * sum(layer.width for layer in self.mtp.cache_layers)
            need = replace(need, per_token=need.per_token + n_bytes)
        return need if self.draft is None else need.beside(need_of(self.draft))

    def _on_cpu(self) -> Model:
        need = self._with_draft(lambda placing: placing._cpu_need(placing.program))
        context = self.fitting_context(need, available_memory())
        machine = self._cpu_machine(self.program, context)
        rows = self.max_rows(context, _prefill_rows(self.program, machine.n_threads))
        return self.model(machine, context, rows)

    def _on_cuda(self, device: Device) -> Model:
        need = self._with_draft(lambda placing: placing.cuda_need(placing.program))
        context = self.fitting_context(need, device.memory()[0], f"memory of the {device.name}")
        rows = self.max_rows(context, CUDA_PREFILL_ROWS)
        machine = self.cuda_machine(device, self.program, context, rows)
        return self.model(machine, context, machine.max_rows)

    def _on_cuda_or_both(self, device: Device) -> Model:
        """All layers on the GPU, or on several of them, or as many of the last ones as fit, as the options
        leave it open."""
        numbers = self.options.devices
        if numbers is not None and len(numbers) > 1:
            return on_cards(self, device, numbers)
        try:
            return self._on_cuda(device)
        except NotEnoughMemory as problem:
            if (model := on_all_cards(self, device)) is not None:
                return model
            cut = self._fitting_cut(device)
            n, n_layers = self._n_layers - cut, self._n_layers
            if not n or self.options.gpu_layers is not None or self.mtp is not None:
                raise
            if self.options.device == "cuda":
                raise NotEnoughMemory(f"{problem}; or --gpu-layers {n}, and the rest on the CPU") from None
        free = human_bytes(device.memory()[0])
        self.warn(
            f"the {device.name} has no room for all of {self.source.name}, {free} are free: the last {n} of "
            f"{n_layers} layers run on it, the others on the CPU"
        )
        return self._on_both(device, cut)

    def _on_both(self, device: Device, cut: int) -> Model:
        """The layers below number `cut` on the CPU, the others and the logits on the GPU. Raises
        NotEnoughMemory."""
        context = self.context
        front, back = split(self.program, cut)
        self.cuda_need(back).check(
            self._part_name(back), context, device.memory()[0], f"memory of the {device.name}"
        )
        if (available := available_memory()) is not None:
            self._cpu_need(front).check(self._part_name(front), context, available)
        cuda_machine = self.cuda_machine(device, back, context, SPLIT_PREFILL_ROWS)
        cpu_machine = self._cpu_machine(front, context)
        rows = _prefill_rows(front, cpu_machine.n_threads)
        return self.model(SplitMachine(cpu_machine, cuda_machine), context, rows)

    def _fitting_cut(self, device: Device) -> int:
        """The first of the layers that the GPU's memory holds; the number of layers if it holds none."""
        free = device.memory()[0]
        for cut in cuts(self.program):
            part = split(self.program, cut)[1]
            if self.cuda_need(part).total(self.context) <= free:
                return cut
        return self._n_layers

    def fitting_context(self, need: MemoryNeed, available: int | None, memory: str = "memory") -> int:
        """The context in tokens, shrunk if the options allow that and `available` bytes of `memory` hold only
        less. Raises NotEnoughMemory."""
        context = self.context
        if available is None:
            return context
        if self.options.context is None:
            fitting = need.largest_context(available)
            if min(context, LEAST_DEFAULT_CONTEXT) <= fitting < context:
                self.warn(f"{memory} is short: the context is {fitting} tokens instead of {context}")
                context = fitting
        name = f"{self.source.name} with {self.draft.source.name}" if self.draft else self.source.name
        need.check(name, context, available, memory)
        return context

    def _part_name(self, part: Program) -> str:
        return f"{self.source.name} ({len(part.layers) - 1} of its {self._n_layers} layers)"

    def _cpu_need(self, part: Program) -> MemoryNeed:
        from ..cpu.abi.sizes import pool_bytes
        from ..cpu.machine import cache_type

        kind = cache_type(part, self.options.kv_type)
        pages = [
            layer.kv_heads * sum(pool_bytes(kind, layer.head_dim, PAGE_SIZE)) for layer in part.cache_layers
        ]
        weights = self.source.held_bytes
        if part is not self.program:
            weights = round(weights * weight_bytes(part) / max(1, weight_bytes(self.program)))
        return MemoryNeed(
            weights,
            sum(pages) / PAGE_SIZE + self._row_bytes(part),
            self._state_bytes(part),
            self._contexts,
        )

    def _cpu_machine(self, part: Program, context: int) -> CpuMachine:
        from ..cpu.machine import CpuMachine, default_threads

        return CpuMachine(
            part,
            self.pages(context),
            max_sequences=self.sequences,
            threads=self.options.threads or default_threads(),
            kv_type=self.options.kv_type,
            max_rows=self.max_rows(context, CPU_ROWS),
            release=self.source.release,
            progress=self.progress,
            team=self.team,
            kept=self._kept_panels(),
        )

    def _kept_panels(self) -> KeptPanels | None:
        """The model's weights on disk in the order of the CPU machine, if the options want them there."""
        if not self.options.weight_cache:
            return None
        from ..cpu.kept_panels import KeptPanels

        files = [(path, None) for path in self.source.paths] + [*self.source.adapters]
        known = [
            (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns, scale)
            for path, scale in files
        ]
        return KeptPanels(repr(known), self.options.weight_cache, self.warn)

    def cuda_machine(
        self, device: Device, part: Program, context: int, max_rows: int, group: CardGroup | None = None
    ) -> CudaMachine:
        """A GPU with a part of the program. Raises CudaError."""
        from ..cuda.machine import CudaMachine

        return CudaMachine(
            part,
            self.pages(context),
            max_sequences=self.sequences,
            max_rows=max_rows,
            kv_type=self.options.kv_type,
            release=self.source.release,
            progress=self.progress,
            device=device,
            group=group,
            background=self.options.background,
        )

    def model(self, machine: AnyMachine, context: int, prefill_rows: int) -> Model:
        """The model with an engine that feeds `machine` prompts in steps of `prefill_rows` tokens."""
        source = self.source
        draft: Model | AnyMachine | None
        drafter: Drafter | None
        draft, drafter = self._load_draft(machine, context)
        table = PageTable(self.pages(context), self.sequences)
        if self.mtp is not None:
            from .speculation.mtp import load_mtp

            draft, drafter = load_mtp(self, self.mtp, machine, table)
        engine = Engine(
            machine,
            table,
            source.config,
            source.end_ids,
            context=context,
            n_tokens=source.tokenizer.vocab_size if source.tokenizer else None,
            prefill_chunk=prefill_rows,
            original_context=self.program.original_context,
            states=machine.states,
            deterministic=self.options.deterministic,
            speculate=self.options.speculate in ("auto", "ngram"),
            drafter=drafter,
            whole_texts=self.program.both_ways,
        )
        return Model(source, machine, engine, draft)

    def _load_draft(self, machine: AnyMachine, context: int) -> tuple[Model | None, Drafter | None]:
        """The draft model, if there is one, and what drafts with it; it shares a CPU machine's threads."""
        if self.draft is None:
            return None, None
        from .speculation.draft import load_draft

        cpu = getattr(machine, "front", machine)
        context = min(context, self.draft.context)
        placing = replace(
            self.draft,
            context=context,
            options=replace(self.draft.options, context=context),
            team=getattr(cpu, "team", None),
        )
        try:
            return load_draft(placing, self.source, self.program)
        except BaseException:
            machine.close()
            raise


def _cut(program: Program, layer: int) -> int:
    """The first layer on the GPU: `layer`, or the next one at which the program can be cut.

    0 puts all layers on the GPU, the number of layers puts none there.
    """
    if layer <= 0:
        return 0
    return min((cut for cut in cuts(program) if cut >= layer), default=len(program.layers) - 1)


def _prefill_rows(program: Program, threads: int) -> int:
    """Tokens of a prefill step: fewer for a larger model, so that Ctrl-C is answered soon."""
    n_weights = 0  # multiplied with one token
    for op in program.ops:
        if isinstance(op, MatMul) and not op.out.logits_rows:
            n_weights += prod(op.weight.shape)
        elif isinstance(op, MoE):  # a token is multiplied with the experts chosen for it only
            n_weights += op.experts.width * sum(prod(m[0].shape) for m in (op.gate, op.up, op.down) if m)
    return max(64, min(512, int(PREFILL_WORK * threads / max(1, n_weights)) // 32 * 32))
