"""A loaded model: files, tokenizer, machine and engine joined; text in, text out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..quant.gguf import GGUFFile
from ..runtime.cache import PAGE_SIZE, PageTable
from ..runtime.cuda.errors import CudaError
from ..runtime.engine import SAVED_STATES, Engine
from ..runtime.ops import CacheLayer, MatMul, MoE, Program
from ..runtime.program import build_program
from ..runtime.sampler import SamplingParams
from ..runtime.state import state_bytes
from ..runtime.stats import GenerationStats
from ..runtime.weights import Weights
from ..tokenizer import Tokenizer, TokenizerError, tokenizer_from_gguf
from ..tokenizer import load_tokenizer as tokenizer_from_files
from ..tokenizer.chat import encode_chat
from ..tokenizer.incremental import IncrementalDecoder
from ..tokenizer.template import TemplateError
from .card import CARD_OVERHEAD, on_cpu, open_card
from .memory import MemoryNeed, NotEnoughMemory, available_memory, cache_bytes_per_token
from .source import Source, is_gguf, open_source
from .stops import StopFilter
from .token_kernel import token_kernel

if TYPE_CHECKING:
    from ..runtime.cpu.machine import CpuMachine
    from ..runtime.cuda.driver import Device
    from ..runtime.cuda.machine import CudaMachine
    from ..runtime.reference import ReferenceMachine

    AnyMachine = CpuMachine | CudaMachine | ReferenceMachine

DEVICES = ("auto", "cpu", "cuda", "reference")
DEFAULT_CONTEXT = 8192  # tokens; the cache's memory is only committed as it fills
LEAST_DEFAULT_CONTEXT = 1024  # where memory is short, the default shrinks down to this
CHUNK_WORK = 2.5e10  # multiply-adds a thread in one prefill step: about a quarter of a second
MAX_THREADS = 1024
REFERENCE_KEEPS = 3 << 30  # bytes of float32 matrices


class Model:
    """A model that is ready to run. Made by `kukri.load`; use as a context manager, or `close` it.

    - `config`: what kind of model it is (ModelConfig).
    - `path`, `name`, `n_bytes`: its file or folder, the name it gives itself, the size of its files.
    - `context`: the most tokens that prompt and answer may have together.
    - `chat_template`: its Jinja template, or None.
    - `tokenizer`: raises TokenizerError if the file brings none; then ids are the only way in.
    - `end_ids`: the tokens that end an answer, as the tokenizer, config.json and
      generation_config.json name them.

    One model holds one conversation: calls reuse the part of the prompt that the KV cache already has,
    and starting a generation ends the one before. Not for use from several threads at once.
    """

    def __init__(self, source: Source, machine: AnyMachine, engine: Engine) -> None:
        self.config = source.config
        self.path = source.path
        self.name = source.name
        self.n_bytes = source.n_bytes
        self.end_ids = engine.end_ids
        self.engine = engine
        self.context = engine.context
        self.chat_template = source.tokenizer.chat_template if source.tokenizer else None
        self._tokenizer = source.tokenizer
        self._machine: AnyMachine | None = machine

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise TokenizerError(f"{self.name} has no tokenizer, so it takes token ids only")
        return self._tokenizer

    @property
    def stats(self) -> GenerationStats:
        """Counts and times of the latest generation."""
        return self.engine.stats

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The ids of a raw prompt, with the BOS token if the model wants one.

        With `special`, control tokens written in the text count as such.
        """
        ids = self.tokenizer.encode(text, special=special)
        bos = self.tokenizer.bos_id
        if self.tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None, **variables: Any
    ) -> list[int]:
        """The ids of a conversation, rendered by the model's chat template up to where it answers.

        Special tokens written in message contents stay text. `variables` go to the template
        (`enable_thinking`, …). Raises TemplateError if the model has no template, or if the template
        refuses the conversation.
        """
        if self.chat_template is None:
            raise TemplateError(f"{self.name} has no chat template; use raw completion instead (--raw)")
        own = self.chat_template == self.tokenizer.chat_template  # which may have another one for tools
        return encode_chat(self.tokenizer, None if own else self.chat_template, messages, tools, **variables)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [len(ids), vocab_size]: the logits after each of `ids`, independent of earlier calls.

        Raises ContextExceeded for more ids than the context holds, ValueError or TypeError for ids
        that are not in the vocabulary or no whole numbers.
        """
        return self.engine.logits(ids)

    def generate(
        self, ids: Sequence[int], params: SamplingParams | None = None
    ) -> Generator[int, None, None]:
        """The token ids that follow `ids`, one by one as they are chosen; end tokens are left out.

        Stop strings are not looked at: those belong to text, see `stream`. Errors as for `logits`,
        raised at the call.
        """
        return self.engine.generate(ids, params)

    def stream(
        self, ids: Sequence[int], params: SamplingParams | None = None, skip_special: bool = True
    ) -> Generator[str, None, None]:
        """The text that follows `ids`, in pieces of whole characters, up to the first stop string.

        No part of a stop string is ever in a piece. Special tokens give no text unless
        `skip_special` is false. Errors as for `generate`. `stats.finish_reason` says how it ended.
        """
        params = params or SamplingParams()
        decoder = IncrementalDecoder(self.tokenizer, skip_special=skip_special)
        return self._text(self.engine.generate(ids, params), decoder, StopFilter(params.stop))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        tools: Sequence[Any] | None = None,
        **variables: Any,
    ) -> Generator[str, None, None]:
        """The model's answer to a conversation, in pieces as it is written.

        `messages` are dicts with `role` and `content` as chat APIs have them, `tools` JSON schemas of
        functions. Errors as for `encode_chat` and `stream`, raised at the call.
        """
        return self.stream(self.encode_chat(messages, tools, **variables), params)

    def _text(
        self, tokens: Generator[int, None, None], decoder: IncrementalDecoder, stops: StopFilter
    ) -> Generator[str, None, None]:
        with closing(tokens):
            for token in tokens:
                piece = stops.push(decoder.push(token))
                if stops.stopped is not None:
                    break
                if piece:
                    yield piece
            else:
                piece = stops.push(decoder.flush()) + stops.flush()
        if stops.stopped is not None:
            self.engine.stats.finish_reason = "stop_string"
        if piece:
            yield piece

    def close(self) -> None:
        """Stop the machine's threads and let its memory go. The model cannot be used afterwards."""
        if self._machine is not None:
            self._machine.close()
            self._machine = None

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_model(
    path: str | os.PathLike[str],
    device: str = "auto",
    context: int | None = None,
    threads: int | None = None,
    kv_type: str = "auto",
    warn: Callable[[str], None] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    text: bool = True,
) -> Model:
    """Load a GGUF file or a Hugging Face folder (config.json and safetensors).

    - `device`: "cpu", "cuda" (the first NVIDIA card), "reference" (NumPy in float32: slow, for comparison),
      or "auto", which is "cuda" where there is a card that can run the model and has room for it, else "cpu".
    - `context`: tokens that prompt and answer may have together. Default: what the model was trained
      for, at most 8192, and less, down to 1024, if memory is short.
    - `threads`: of the CPU machine; default: the physical cores this process
      may use, within a container's quota.
    - `kv_type`: how the CPU machine stores keys and values: "f16", "f32", "q8_0", "q4_0" or "auto", see
      `CpuMachine`.
    - `warn`: called with one line for things worth knowing; default: Python's `warnings`.
    - `progress`: called with (what is being done, how much of it is done, of how much) while loading.
    - `text`: False leaves the tokenizer alone, and ids are the only way in.

    Raises FileNotFoundError, DamagedFile or UnsupportedModel (a DamagedFile) for the file,
    TokenizerError for its tokenizer, CudaError if the card cannot be used, NotEnoughMemory before anything
    is loaded that would not fit, and ValueError for arguments out of range.
    """
    path = Path(path)
    warn = warn or (lambda message: warnings.warn(message, stacklevel=5))
    _check_arguments(device, context, threads)
    source = open_source(path, text)
    if source.builtin:
        warn(f"{source.name} ships no chat template; it gets the built-in one for {source.builtin}")
    weights = Weights(source.config, source.tensors)
    program = build_program(source.config, weights)
    if weights.skipped:
        warn(f"{source.name} is more than a text model; not loaded: {', '.join(sorted(weights.skipped))}")
    card = open_card(device, program, kv_type, warn)
    if card is not None:
        try:
            return _on_card(card, source, program, context, kv_type, warn, progress)
        except (CudaError, NotEnoughMemory) as problem:
            card.close()
            if device == "cuda":
                raise
            warn(on_cpu(card.name, problem))
        except BaseException:
            card.close()
            raise
    layers: Sequence[CacheLayer] = program.cache_layers
    if device == "reference":
        threads, kv_type, copied = 1, "f32", _float32_bytes(source)
    else:
        from ..runtime.cpu.machine import CpuMachine, cache_type, default_threads

        threads, kv_type, copied = threads or default_threads(), cache_type(program, kv_type).lower(), 0
        layers = [replace(layer, value_dim=None) for layer in layers]  # it keeps values beside their keys
    need = MemoryNeed(
        source.held_bytes + copied,
        cache_bytes_per_token(layers, kv_type),
        (1 + SAVED_STATES) * state_bytes(program.state_layers),
    )
    context = _choose_context(source, need, context, warn, available_memory())
    n_pages = -(-context // PAGE_SIZE)
    machine: CpuMachine | ReferenceMachine
    if device == "reference":
        from ..runtime.reference import ReferenceMachine

        machine = ReferenceMachine(program, n_pages, keep_bytes=copied)
    else:
        machine = CpuMachine(
            program,
            n_pages,
            threads=threads,
            kv_type=kv_type,
            release=source.release,
            progress=progress,
        )
    return _model(source, machine, program, context, _prefill_chunk(program, threads))


def _on_card(
    card: Device,
    source: Source,
    program: Program,
    context: int | None,
    kv_type: str,
    warn: Callable[[str], None],
    progress: Callable[[str, int, int], None] | None,
) -> Model:
    """The model on a card, if that has room for it."""
    from ..runtime.cuda.machine import CudaMachine, cache_type

    per_token = cache_bytes_per_token(program.cache_layers, cache_type(program, kv_type))
    need = MemoryNeed(source.n_bytes + CARD_OVERHEAD, per_token)
    context = _choose_context(source, need, context, warn, card.memory()[0])
    n_pages = -(-context // PAGE_SIZE)
    machine = CudaMachine(
        program,
        n_pages,
        max_rows=1024,
        kv_type=kv_type,
        release=source.release,
        progress=progress,
        device=card,
    )
    return _model(source, machine, program, context, machine.max_rows)


def _model(source: Source, machine: AnyMachine, program: Program, context: int, chunk: int) -> Model:
    """The model with an engine that feeds `machine` prompts in steps of `chunk` rows."""
    engine = Engine(
        machine,
        PageTable(-(-context // PAGE_SIZE)),
        source.config,
        source.end_ids,
        context=context,
        n_tokens=source.tokenizer.vocab_size if source.tokenizer else None,
        prefill_chunk=chunk,
        same_up_to=program.same_up_to,
        states=machine.states,
    )
    return Model(source, machine, engine)


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a GGUF file (its tensors are not needed), a Hugging Face folder, a tokenizer.json
    or a SentencePiece tokenizer.model.

    Raises FileNotFoundError, DamagedFile for a broken GGUF file, TokenizerError for anything else.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if path.is_file() and is_gguf(path):
        tokenizer = tokenizer_from_gguf(GGUFFile.open(path, tensors=False).metadata)
    else:
        tokenizer = tokenizer_from_files(path)
    tokenizer.accelerate(token_kernel())
    return tokenizer


def _check_arguments(device: str, context: int | None, threads: int | None) -> None:
    if device not in DEVICES:
        raise ValueError(f"unknown device {device!r}; there are {', '.join(DEVICES)}")
    if context is not None and context < 1:
        raise ValueError(f"the context must be at least one token, not {context}")
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads must be from 1 to {MAX_THREADS}, not {threads}")


def _float32_bytes(source: Source) -> int:
    """What the reference machine may keep of dequantised matrices."""
    return min(4 * sum(prod(tensor.shape) for tensor in source.tensors.values()), REFERENCE_KEEPS)


def _choose_context(
    source: Source, need: MemoryNeed, context: int | None, warn: Callable[[str], None], available: int | None
) -> int:
    trained, most = source.config.context_length, source.config.max_context
    if context is not None and most is not None and context > most:
        raise ValueError(f"{source.name} knows {most} positions, so the context cannot be {context} tokens")
    if context is None:
        context = min(trained, DEFAULT_CONTEXT) if trained > 0 else DEFAULT_CONTEXT
        fitting = need.largest_context(available) if available is not None else context
        if min(context, LEAST_DEFAULT_CONTEXT) <= fitting < context:
            warn(f"memory is short: the context is {fitting} tokens instead of {context}")
            context = fitting
    elif 0 < trained < context:
        warn(f"{source.name} was trained for {trained} tokens; beyond them its answers may break down")
    if available is not None:
        need.check(source.name, context, available)
    return context


def _prefill_chunk(program: Program, threads: int) -> int:
    """Rows of a prefill step: few enough that Ctrl-C is answered soon, whatever the model's size."""
    weights = 0
    for op in program.ops:
        if isinstance(op, MatMul) and not op.out.wanted:
            weights += prod(op.weight.shape)
        elif isinstance(op, MoE):  # of which a row meets only those chosen for it
            weights += op.experts.width * sum(prod(m[0].shape) for m in (op.gate, op.up, op.down) if m)
    return max(64, min(512, int(CHUNK_WORK * threads / max(1, weights)) // 32 * 32))
