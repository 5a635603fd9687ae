"""kukri: quantised language models on the machine in front of you.

    import kukri

    with kukri.load("smollm2") as model:
        for piece in model.chat("Why is the sky blue?", temperature=0.7, max_tokens=200):
            print(piece, end="", flush=True)

Importing the package costs next to nothing: NumPy, Numba and the rest are imported by the calls that need
them. The package prints nothing. It logs to the logger "kukri", and `load` takes callbacks for progress and
warnings.

Errors. All of the following are KukriErrors, and each is also of the built-in kind in brackets. Messages have
one line. Arguments out of range raise ValueError or TypeError; errors of the operating system are OSErrors.

- ModelNotFound (a LookupError): check the name, or the licence and HF_TOKEN of a model on the Hub.
- Unreachable (a ModelNotFound): check the network, HF_ENDPOINT and the proxy, or give a file.
- NoHome (an OSError): there is no folder of this user for downloads and kernels; set KUKRI_HOME.
- StoreError (a RuntimeError): make room on the disk, or load again to resume a download that broke off.
- DamagedFile (a ValueError): download or convert the file anew.
- UnsupportedModel (a DamagedFile): take another model or format; the message says which are supported.
- NotEnoughMemory (a RuntimeError): take a smaller context, fewer `gpu_layers` or a smaller quantisation.
- CudaError (a RuntimeError): the GPU's driver failed; load with device="cpu", or restart the process.
- CudaUnavailable (a CudaError): install a driver and the extra `cuda`, or load with device="cpu".
- CudaOutOfMemory (a CudaError): free memory of the GPU, or load with a smaller context or fewer `gpu_layers`.
- TokenizerError (a ValueError): take a model whose files have a supported tokenizer, or use token ids.
- TemplateError (a ValueError): change the messages, or pass another template to `render_chat`; where its
  `raised` is true, the template itself refused the messages.
- ContextExceeded (a ValueError): shorten the prompt, or load the model with a larger context.
- CacheFull (a RuntimeError): the pool of the KV cache is too small; load the model with a larger context.
- BadLogits (an ArithmeticError): the model computed NaN or infinity; take another file of it, or
  kv_type="f32".
- ConstraintError (a ValueError): take another `response_format`; the message names the part that is not
  supported or that nothing can meet.
- QueueFull (a RuntimeError): too many requests wait for the model; send this one again later.
- StaleGeneration (a RuntimeError): another call took the KV cache over between two parts of logits.
- ModelClosed (a RuntimeError): load the model again; in a process made by `fork`, load it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from .quant.errors import DamagedFile, NoHome, UnsupportedModel
    from .runtime.answers.answer import Answer
    from .runtime.answers.events import (
        Finished,
        TextDelta,
        ThinkingDelta,
        TokenEvent,
        ToolCall,
        ToolCallDelta,
        ToolCallDropped,
        ToolCallEnd,
        ToolCallStart,
    )
    from .runtime.answers.functions import Tool
    from .runtime.answers.request import GenerationRequest
    from .runtime.answers.structured.response_format import ResponseFormat
    from .runtime.cuda.driver.errors import CudaError, CudaOutOfMemory, CudaUnavailable
    from .runtime.engine.errors import (
        BadLogits,
        CacheFull,
        ConstraintError,
        ContextExceeded,
        ModelClosed,
        QueueFull,
        StaleGeneration,
    )
    from .runtime.engine.sampling.params import SamplingParams
    from .runtime.hub.errors import ModelNotFound, StoreError, Unreachable
    from .runtime.model.memory_check import NotEnoughMemory
    from .runtime.model.model import Model
    from .runtime.response_cache.cache import ResponseCache
    from .runtime.sessions.prompt_cache import PromptCache
    from .runtime.sessions.session import Session
    from .tokenizer import TemplateError, Tokenizer, TokenizerError

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "BadLogits",
    "CacheFull",
    "ConstraintError",
    "ContextExceeded",
    "CudaError",
    "CudaOutOfMemory",
    "CudaUnavailable",
    "DamagedFile",
    "Finished",
    "GenerationRequest",
    "KukriError",
    "Model",
    "ModelClosed",
    "ModelNotFound",
    "NoHome",
    "NotEnoughMemory",
    "PromptCache",
    "QueueFull",
    "ResponseCache",
    "ResponseFormat",
    "SamplingParams",
    "Session",
    "StaleGeneration",
    "StoreError",
    "TemplateError",
    "TextDelta",
    "ThinkingDelta",
    "TokenEvent",
    "Tokenizer",
    "TokenizerError",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallDropped",
    "ToolCallEnd",
    "ToolCallStart",
    "Unreachable",
    "UnsupportedModel",
    "load",
    "load_tokenizer",
    "render_chat",
]

_HOMES = {  # public name → the module that defines it, imported when the name is first used
    "Answer": "runtime.answers.answer",
    "BadLogits": "runtime.engine.errors",
    "CacheFull": "runtime.engine.errors",
    "ConstraintError": "runtime.engine.errors",
    "ContextExceeded": "runtime.engine.errors",
    "CudaError": "runtime.cuda.driver.errors",
    "CudaOutOfMemory": "runtime.cuda.driver.errors",
    "CudaUnavailable": "runtime.cuda.driver.errors",
    "DamagedFile": "quant.errors",
    "Finished": "runtime.answers.events",
    "GenerationRequest": "runtime.answers.request",
    "Model": "runtime.model.model",
    "ModelClosed": "runtime.engine.errors",
    "ModelNotFound": "runtime.hub.errors",
    "NoHome": "quant.errors",
    "NotEnoughMemory": "runtime.model.memory_check",
    "PromptCache": "runtime.sessions.prompt_cache",
    "ResponseCache": "runtime.response_cache.cache",
    "QueueFull": "runtime.engine.errors",
    "ResponseFormat": "runtime.answers.structured.response_format",
    "SamplingParams": "runtime.engine.sampling.params",
    "Session": "runtime.sessions.session",
    "StaleGeneration": "runtime.engine.errors",
    "StoreError": "runtime.hub.errors",
    "TemplateError": "tokenizer.chat.template",
    "TextDelta": "runtime.answers.events",
    "ThinkingDelta": "runtime.answers.events",
    "TokenEvent": "runtime.answers.events",
    "Tokenizer": "tokenizer.core",
    "TokenizerError": "tokenizer.errors",
    "Tool": "runtime.answers.functions",
    "ToolCall": "runtime.answers.events",
    "ToolCallDelta": "runtime.answers.events",
    "ToolCallDropped": "runtime.answers.events",
    "ToolCallEnd": "runtime.answers.events",
    "ToolCallStart": "runtime.answers.events",
    "Unreachable": "runtime.hub.errors",
    "UnsupportedModel": "quant.errors",
}


class KukriError(Exception):
    """The base of all errors that kukri itself raises.

    It is defined here because `quant`, `tokenizer` and `runtime` all need it, and the first two import no
    sibling; the package itself is imported before any of them.
    """


def load(
    model: str | os.PathLike[str],
    device: str = "auto",
    context: int | None = None,
    threads: int | None = None,
    kv_type: str = "auto",
    gpu_layers: int | None = None,
    parallel: int | None = None,
    speculate: str = "auto",
    task: str = "auto",
    *,
    draft: str | os.PathLike[str] | None = None,
    lora: Sequence[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]] = (),
    control_vectors: Sequence[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]] = (),
    control_layers: tuple[int, int] | None = None,
    deterministic: bool = False,
    devices: Sequence[int] | str | None = None,
    split_mode: str = "auto",
    cpu_moe: bool | int = False,
    weight_cache: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Model:
    """Load a model: a GGUF file, a Hugging Face folder, a short name (`smollm2`), or `org/repo[:quant]` on
    the Hugging Face Hub. A model that is not on this machine yet is downloaded.

    - `device`: "cpu", "cuda" (NVIDIA GPUs), "reference" (NumPy in float32: slow, for comparison), or
      "auto": the GPU if there is one that can run the model, with as many of the last layers as its memory
      holds, else the CPU.
    - `context`: the most tokens that prompt and answer may have together. Default: what the model was trained
      for, at most 8192, and less, down to 1024, where memory is short. On the CPU, memory of the KV cache is
      only committed as it fills.
    - `threads`: threads of the CPU machine. Default: the physical cores that this process may use, within a
      container's quota.
    - `kv_type`: how the KV cache stores keys and values: "f32", "f16", "q8_0", "q4_0", on the CPU also keys /
      values in different types ("q8_0/q4_0", "f16/q8_0", "f16/q4_0"), or "auto". "auto" is f32 if all weights
      are floats. For quantised weights it is f16 on the GPU, and on the CPU q8_0, but f16 for models whose
      keys have a bias beside attention sinks or a soft cap: these lose too much in 8 bits.
    - `gpu_layers`: run only this many layers, the last ones, on the GPU and the others on the CPU. Default:
      all, or with "auto" as many as fit. 0 runs all on the CPU.
    - `parallel`: generations that may run at the same time, each with a whole context of its own; more than
      that wait. Default: 4, which share the memory of one context, or 1 for models with recurrent states.
    - `speculate`: whether decode steps compute tokens along that are likely to follow, which changes how many
      tokens a second there are and not which: "ngram" looks them up in prompt and answer, "draft" asks the
      draft model, "auto" does both, each where it pays, "mtp" asks the model's own layer for multi-token
      prediction (on the CPU), and "off" nobody.
    - `draft`: a draft model, named as `model` is: a smaller one, best with the same vocabulary, which
      proposes tokens that the model then checks several at a time.
    - `task`: what the model is for: "text", "embed" for vectors of texts (`Model.embed`), "rerank" for scores
      of documents (`Model.rerank`), or "auto": what its files say that it is made for.
    - `lora`: LoRA adapters whose effects add up: folders of PEFT or GGUF files, each a path, "PATH:SCALE" or
      (path, scale). The weights stay as they are; rank-r products are computed beside them.
    - `control_vectors`: GGUF files of directions that are added to the residual stream behind layers, named
      as in `lora`; `control_layers`: the first and the last layer, counted from 0, that they act behind.
      Default: all that they have directions for.
    - `deterministic`: compute every generation by itself, one after the other, so that what runs beside it
      cannot change its tokens even where batches round otherwise. Nothing is shared or drafted then.
    - `devices`: the GPUs that share the model, by number: "0,1" or [0, 1]. Default: the first one, and where
      it has no room for the model all there are.
    - `split_mode`: how several GPUs share it: by "layers", a part of them each, which "auto" is, or by
      "tensors", where every layer's work is divided; that has not been seen to work on GPUs yet.
    - `weight_cache`: bytes on disk for weights in the order in which the CPU reads them, of all models
      together; a model whose weights are there starts many times faster. Default: 0, none are kept.
    - `progress`: called with a stage ("downloading smollm2", "repacking weights"), the bytes or units done,
      and those in all (0: unknown), while the model is downloaded and loaded.
    - `warn`: called with one line for each thing that the user should know: a context beyond the trained one,
      a context that had to shrink, layers that do not fit on the GPU, a built-in chat template in place of a
      missing one. Default: a warning in the log, which is invisible unless `logging` is configured.

    "reference" ignores `threads` and `kv_type`: it computes in NumPy and stores float32.

    Use the result as a context manager, or call its `close`. Raises ModelNotFound, Unreachable or StoreError
    when the files cannot be had; DamagedFile, UnsupportedModel or TokenizerError when they cannot be used;
    NotEnoughMemory; with device "cuda" CudaError, CudaUnavailable or CudaOutOfMemory; ValueError for
    arguments out of range; and OSError when the operating system does not let a file be read or written.
    """
    from functools import partial

    from .runtime.adapters.stored import Adapters, adapter_files
    from .runtime.hub.progress import CallbackProgress, NoProgress
    from .runtime.hub.resolve import resolve
    from .runtime.model.loading import load_model
    from .runtime.model.options import ALL_LAYERS, LoadOptions, device_numbers

    shown = NoProgress if progress is None else partial(CallbackProgress, progress)
    small = None if draft is None else str(resolve(str(draft), shown))
    options = LoadOptions(
        *(device, context, threads, kv_type, gpu_layers, parallel, speculate, task),
        adapters=Adapters(adapter_files(lora), adapter_files(control_vectors), control_layers),
        draft=small,
        deterministic=deterministic,
        devices=device_numbers(devices),
        split_mode=split_mode,
        cpu_moe=ALL_LAYERS if cpu_moe is True else int(cpu_moe),
        weight_cache=weight_cache,
    )
    path = resolve(str(model), shown)
    return load_model(path, options, warn=warn, progress=progress)


def load_tokenizer(source: str | os.PathLike[str]) -> Tokenizer:
    """Load a tokenizer: of a GGUF file (its tensors are not needed), a Hugging Face folder, a
    tokenizer.json or a SentencePiece tokenizer.model.

    `encode(text, special=False)` gives ids without BOS and EOS; with `special=True` control tokens
    written in the text become control tokens. `decode(ids)` gives the text back.

    Raises FileNotFoundError, TokenizerError, or DamagedFile for a broken GGUF file.
    """
    from .runtime.model.source import load_tokenizer

    return load_tokenizer(source)


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    add_generation_prompt: bool = True,
    now: str | None = None,
    **variables: Any,
) -> str:
    """Render a conversation with a Jinja chat template: the text that a model was trained on.

    - `messages`: dicts with `role` and `content` as chat APIs have them.
    - `tools`: JSON schemas of functions that the model may call.
    - `add_generation_prompt`: end with the beginning of the model's answer.
    - `now`: ISO time for `strftime_now` in the template; default: the present.
    - `variables`: what else the template reads: `bos_token`, `eos_token`, `enable_thinking`, …

    Templates run in an immutable sandbox with bounded time and memory. Raises TemplateError for a template
    that is broken, reaches out of the sandbox, or refuses the conversation.
    """
    from .tokenizer.chat.template import render_chat

    return render_chat(template, messages, tools, add_generation_prompt, now, **variables)


def __getattr__(name: str) -> Any:
    """A public class, imported when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__]
