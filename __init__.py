"""kukri: quantised language models on the machine in front of you.

    import kukri

    with kukri.load("smollm2") as model:
        messages = [{"role": "user", "content": "Why is the sky blue?"}]
        for piece in model.chat(messages, kukri.SamplingParams(temperature=0.7)):
            print(piece, end="", flush=True)

Importing the package costs next to nothing; NumPy, Numba and the rest are imported by what needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from .runtime.engine.sampler import SamplingParams
    from .runtime.model.model import Model
    from .tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = ["Model", "SamplingParams", "load", "load_tokenizer", "render_chat"]


def load(
    model: str | os.PathLike[str],
    device: str = "auto",
    context: int | None = None,
    threads: int | None = None,
    kv_type: str = "auto",
    gpu_layers: int | None = None,
) -> Model:
    """Load a model, given as a GGUF file, a Hugging Face folder, a short name (`smollm2`) or
    `org/repo[:quant]` on the Hugging Face Hub. What is not on this machine yet is downloaded.

    - `device`: "cpu", "cuda" (the first NVIDIA card), "reference" (NumPy in float32: slow, for comparison),
      or "auto", the card if there is one with room for the model or a part of it, else the CPU.
    - `context`: tokens that prompt and answer may have together. Default: what the model was trained
      for, at most 8192, and less, down to 1024, if memory is short. The memory of the KV cache is only
      committed as it fills.
    - `threads`: of the CPU machine; default: the logical processors this process may use.
    - `kv_type`: how the CPU machine stores keys and values: "f16", "f32", or "auto", which is f16
      unless all weights are floats.

    - `gpu_layers`: run only so many layers on the card, the last ones, and the others on the CPU.

    `threads` and `kv_type` mean nothing to "reference", which computes on its own and keeps float32.

    Use the result as a context manager, or call its `close`. Raises, each with a message of one line:

    - `kukri.runtime.hub.errors.ModelNotFound`: no such file, name or repository, or none within reach;
    - `kukri.runtime.hub.errors.StoreError`: a download that broke off or came false, no room on the disk;
    - `kukri.quant.errors.DamagedFile`, also for what is not supported, and
      `kukri.tokenizer.TokenizerError`;
    - `kukri.runtime.model.memory_check.NotEnoughMemory`;
    - OSError: the operating system does not let a file be read or written;
    - ValueError: arguments out of range.

    A context above what the model was trained for is a warning.
    """
    from .runtime.hub.resolve import resolve
    from .runtime.model.loading import load_model

    return load_model(resolve(str(model)), device, context, threads, kv_type, gpu_layers=gpu_layers)


def load_tokenizer(source: str | os.PathLike[str]) -> Tokenizer:
    """Load a tokenizer: of a GGUF file (its tensors are not needed), a Hugging Face folder, a
    tokenizer.json or a SentencePiece tokenizer.model.

    `encode(text, special=False)` gives ids without BOS and EOS; with `special=True` control tokens
    written in the text count as such. `decode(ids)` gives the text back.

    Raises FileNotFoundError, `kukri.tokenizer.TokenizerError`, or
    `kukri.quant.errors.DamagedFile` for a broken GGUF file.
    """
    from .runtime.model.model import load_tokenizer

    return load_tokenizer(source)


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    add_generation_prompt: bool = True,
    now: str | None = None,
    **variables: Any,
) -> str:
    """A conversation as the text that a model was trained on, by its Jinja chat template.

    - `messages`: dicts with `role` and `content` as chat APIs have them; `tools`: JSON schemas.
    - `add_generation_prompt`: end with the beginning of the model's answer.
    - `now`: ISO time for `strftime_now` in the template; default: the present.
    - `variables`: what else the template reads: `bos_token`, `eos_token`, `enable_thinking`, …

    Templates run in an immutable sandbox. Raises `kukri.tokenizer.chat.template.TemplateError` for a template
    that is broken, reaches out of it, or refuses the conversation.
    """
    from .tokenizer.chat.template import render_chat

    return render_chat(template, messages, tools, add_generation_prompt, now, **variables)


def __getattr__(name: str) -> Any:
    """`Model` and `SamplingParams`, imported when first asked for."""
    if name == "Model":
        from .runtime.model.model import Model

        return Model
    if name == "SamplingParams":
        from .runtime.engine.sampler import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
