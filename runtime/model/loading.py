"""Loading a model: its files, its program, and the machine or the two machines that run it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..ops import Program
from ..program.build import build_program
from ..weights.binding import Weights
from .model import Model
from .options import LoadOptions
from .placing import Placing
from .source import Source, check_writes_text, open_source

if TYPE_CHECKING:
    from ..adapters.adapt import Adapted

DEFAULT_CONTEXT = 8192  # tokens; the cache's memory is only committed as it fills

_log = logging.getLogger(__name__)


@np.errstate(all="ignore")  # weights that overflow show in the logits, without NumPy's warnings on stderr
def load_model(
    path: str | os.PathLike[str],
    options: LoadOptions | None = None,
    *,
    warn: Callable[[str], None] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    text: bool = True,
) -> Model:
    """Load a GGUF file or a Hugging Face folder (config.json and safetensors).

    - `warn`: called with one line for each thing that the user should know, such as a context beyond the
      trained one or a model that does not fit on the GPU. Default: a warning in this module's log.
    - `progress`: called with a stage ("repacking weights"), the units done and the units in all.
    - `text`: False loads no tokenizer, and the model takes token ids only.

    Raises FileNotFoundError, DamagedFile or UnsupportedModel (a DamagedFile) for the file, TokenizerError for
    its tokenizer, CudaError if device "cuda" cannot be used, NotEnoughMemory before anything that would not
    fit is loaded, and ValueError for a context or a KV cache type that the model cannot have.
    """
    options = options or LoadOptions()
    warn = warn or _log.warning
    source = open_source(Path(path), text)
    task = _task(source, options.task)
    for note in source.notes:
        warn(note)
    if source.builtin and task == "text":
        warn(f"{source.name} ships no chat template; it gets the built-in one for {source.builtin}")
    beside = source.beside
    tensors = {n: t for n, t in source.tensors.items() if n not in beside} if beside else source.tensors
    weights = Weights(source.config, tensors)
    mtp: Program | None = None
    hidden: Literal["", "normed", "residual"] = ""
    if options.speculate == "mtp":
        from .speculation.mtp import open_mtp

        mtp, hidden = open_mtp(source)
    program = build_program(source.config, weights, vectors=task != "text", hidden=hidden)
    if options.adapters:
        from ..adapters.adapt import adapt

        adapted = adapt(program, source.config, weights, source.tensors, options.adapters)
        program, source = adapted.program, _with_adapters(source, adapted)
        for note in adapted.notes:
            warn(note)
    if weights.skipped and mtp is None:
        warn(f"{source.name} is more than a text model; not loaded: {', '.join(sorted(weights.skipped))}")
    context = _context(source, options.context, warn)
    placing = Placing(source, program, options, context, warn, progress, mtp=mtp)
    if options.draft is not None:
        from .speculation.draft import open_draft

        placing = replace(placing, draft=open_draft(placing))
    model = placing.place()
    if task != "text":
        _add_vectors(model, source, task)
    return model


def _add_vectors(model: Model, source: Source, task: str) -> None:
    """Let a model make vectors of texts, or scores by its head."""
    from ..embedding.reranker import Reranker  # imported only for models that make vectors
    from ..embedding.settings import default_settings
    from ..embedding.texts import TextVectors

    engine, tokenizer, hidden = model.engine, model.tokenizer, source.config.hidden
    if task == "rerank":
        model.reranker = Reranker(engine, tokenizer, source.head, hidden, model.embedded)
    settings = source.embedding or default_settings(source.config.causal)
    model.vectors = TextVectors(engine, tokenizer, settings, hidden, model.embedded)


def _task(source: Source, task: str) -> str:
    """What a model is loaded for: "text", "embed", or "rerank" by a head.

    Raises UnsupportedModel if it writes no text but should.
    """
    if task == "auto":
        task = "rerank" if source.head else "embed" if source.config.no_text or source.embedding else "text"
    if task == "rerank" and source.head is None:
        task = "text"  # which may be yes or no
    if task == "text":
        check_writes_text(source.config)
    return task


def _with_adapters(source: Source, adapted: Adapted) -> Source:
    """The source with the memory of its adapters, and with a fingerprint of its own."""
    return replace(
        source,
        held_bytes=source.held_bytes + adapted.n_bytes,
        adapters=adapted.files,
    )


def _context(source: Source, context: int | None, warn: Callable[[str], None]) -> int:
    """The context that was asked for, or the default one. ValueError for more than the model's positions."""
    trained, most = source.config.context_length, source.config.max_context
    longest = source.embedding.max_tokens if source.embedding and source.config.no_text else None
    if context is None and longest:
        return min(longest, most or longest)
    if context is None:
        return min(trained, DEFAULT_CONTEXT) if trained > 0 else DEFAULT_CONTEXT
    if most is not None and context > most:
        raise ValueError(f"{source.name} knows {most} positions, so the context cannot be {context} tokens")
    if 0 < trained < context:
        warn(f"{source.name} was trained for {trained} tokens; beyond them its answers may break down")
    return context
