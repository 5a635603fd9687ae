"""A loaded model: files, tokenizer, machine and engine joined; text in, text out."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...quant.gguf.reader import GGUFFile
from ...tokenizer import Tokenizer, TokenizerError, tokenizer_from_gguf
from ...tokenizer import load_tokenizer as tokenizer_from_files
from ...tokenizer.chat.chat import encode_chat
from ...tokenizer.chat.template import TemplateError
from ...tokenizer.incremental import IncrementalDecoder
from ..engine.engine import Engine
from ..engine.sampler import SamplingParams
from ..engine.stats import GenerationStats
from .source import Source, is_gguf
from .stop_strings import StopFilter
from .tokenizer_kernel import tokenizer_kernel

if TYPE_CHECKING:
    from ..cpu.machine import CpuMachine
    from ..cuda.machine import CudaMachine
    from ..engine.split import SplitMachine
    from ..reference.machine import ReferenceMachine

    AnyMachine = CpuMachine | CudaMachine | ReferenceMachine | SplitMachine


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
    tokenizer.accelerate(tokenizer_kernel())
    return tokenizer
