"""A loaded model: text or token ids in, text, token ids or logits out."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, cast

import numpy as np

from ...quant.errors import UnsupportedModel
from ...quant.units import human_bytes
from ...tokenizer import Tokenizer, TokenizerError
from ...tokenizer.chat.chat import encode_chat
from ...tokenizer.chat.template import TemplateError
from ...tokenizer.fim import encode_fim
from ..answers.answer import Answer, AnswerParts
from ..answers.beams import BeamAnswer, BeamAnswers
from ..answers.chat_format import ChatFormat, one_call_a_message
from ..answers.continuation import Continuation
from ..answers.kept import AnswerRouter, AnswerSource, KeptTokens
from ..answers.request import GenerationRequest, Messages
from ..answers.structured.constraints import Constraints, form_of, told
from ..answers.token_reader import TokenReader, shown
from ..engine.engine import Engine
from ..engine.errors import ModelClosed
from ..engine.sampling.beam_search import BeamParams, EarlyStopping
from ..engine.sampling.params import SamplingParams
from ..engine.stats import GenerationStats
from .fingerprint import fingerprint
from .sampling_keywords import AnswerKeywords, SamplingKeywords, generation_request, sampling_params
from .sampling_texts import SamplingTexts
from .source import Source, check_embedded

if TYPE_CHECKING:
    from ..cpu.machine import CpuMachine
    from ..cuda.chain import CudaChain
    from ..cuda.machine import CudaMachine
    from ..cuda.team import CudaTeam
    from ..embedding.reranker import Reranker
    from ..embedding.scoring import TextScore
    from ..embedding.texts import TextVectors, VectorKeywords
    from ..engine.split import SplitMachine
    from ..inspection.attention import AttentionChoice
    from ..inspection.inspection import Inspection
    from ..inspection.observed import ObservedAnswer
    from ..reference.machine import ReferenceMachine

    AnyMachine: TypeAlias = CpuMachine | CudaMachine | CudaChain | CudaTeam | ReferenceMachine | SplitMachine


class Model:
    """A loaded model. Made by `kukri.load`; use it as a context manager, or call `close`.

    - `config`: ModelConfig, the sizes and options of the architecture.
    - `path`, `name`, `n_bytes`: its file or folder, the name its files state, the size of its files in bytes.
    - `context`: the most tokens that prompt and answer may have together.
    - `chat_template`: the Jinja source of its chat template, or None.
    - `tokenizer`: raises TokenizerError if its files have none; such a model takes token ids only.
    - `end_ids`: the tokens that end an answer, as the tokenizer, config.json and
      generation_config.json name them.
    - `stats`: token counts and times of the latest generation, and why it ended.

    It may be used from several threads: generations that run at the same time share the model's steps and its
    KV cache, and what they begin with in common is computed once. After `close`, calls raise ModelClosed, as
    they do in a process made by `fork`, where the model has no threads.
    """

    def __init__(
        self, source: Source, machine: AnyMachine, engine: Engine, draft: Model | AnyMachine | None = None
    ) -> None:
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
        self._draft = draft
        self._paths = source.paths
        self.vectors: TextVectors | None = None  # of a model that is loaded to make vectors
        self.reranker: Reranker | None = None  # of one that is loaded to make scores by a head
        self._adapters = source.adapters
        self.answer_source: AnswerSource | None = None  # asked before an answer is computed
        self.router: AnswerRouter | None = None  # answers in place of this model
        self._format: ChatFormat | None = None
        self._texts = SamplingTexts(lambda: self.tokenizer, self.config.vocab_size)
        self._constraints = Constraints(lambda: self.tokenizer, self.end_ids)

    def __repr__(self) -> str:
        state = f"context {self.context}" if self._machine is not None else "closed"
        device = type(self.engine.machine).__name__.removesuffix("Machine").lower()
        return f"<Model {self.name!r}: {self.config.arch}, {human_bytes(self.n_bytes)}, {device}, {state}>"

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises TokenizerError if its files have none."""
        if self._tokenizer is None:
            raise TokenizerError(f"{self.name} has no tokenizer, so it takes token ids only")
        return self._tokenizer

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the model's files, by which what is kept of it is known again (SHA-256)."""
        return fingerprint(self._paths, self._adapters)

    @property
    def stats(self) -> GenerationStats:
        """Token counts and times of the latest generation, and why it ended."""
        return self.engine.stats

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The token ids of a raw prompt, with the BOS token or what else the model's files ask for in front.

        With `special`, control tokens written in the text become control tokens. Raises TokenizerError if the
        model has no tokenizer, or no embedding for one of the tokens.
        """
        return self.embedded(self.tokenizer.with_prefix(self.tokenizer.encode(text, special=special)))

    def encode_chat(
        self,
        messages: Messages,
        tools: Sequence[Any] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a conversation, rendered by the model's chat template, up to the model's answer.

        - `messages`: dicts with `role` and `content`, as chat APIs have them, or a text, which is one message
          of a user; control tokens that are written in a content stay text.
        - `tools`: JSON schemas of functions that the model may call.
        - `variables`: what else the template reads, such as {"enable_thinking": False}.

        Raises TemplateError if the model has no template, or if the template refuses the conversation, and
        TokenizerError if the model has no tokenizer, or no embedding for one of the tokens.
        """
        if self.chat_template is None:
            raise TemplateError(f"{self.name} has no chat template; use raw completion instead (--raw)")
        # With None, encode_chat chooses among the tokenizer's templates: it may have another one for tools.
        own = self.chat_template == self.tokenizer.chat_template
        template = None if own else self.chat_template
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if isinstance(messages, Mapping) or not all(isinstance(message, Mapping) for message in messages):
            raise TypeError("messages are a list of dicts with `role` and `content`, or one text")
        return self.embedded(encode_chat(self.tokenizer, template, messages, tools, **(variables or {})))

    def encode_fim(self, prefix: str, suffix: str) -> list[int]:
        """The token ids of a prompt behind which the model writes what belongs between two texts.

        Raises TokenizerError if its vocabulary has no tokens for that.
        """
        return self.embedded(encode_fim(self.tokenizer, self.name, prefix, suffix))

    def embedded(self, ids: list[int]) -> list[int]:
        """`ids`, all of which the model must have embeddings for. Raises TokenizerError."""
        check_embedded(self.name, self.tokenizer, ids, self.config.vocab_size)
        return ids

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [len(ids), vocab_size]: the logits after each of `ids`, whatever was computed before.

        Raises ContextExceeded for more ids than the context holds, ValueError for ids outside the vocabulary,
        TypeError for ids that are not a flat sequence of whole numbers, ModelClosed.
        """
        return self._open_engine().logits(ids)

    def generate(
        self,
        ids: Sequence[int],
        params: SamplingParams | None = None,
        response_format: Any = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> Generator[int, None, None]:
        """The token ids that follow `ids`, each as soon as it is chosen; end tokens are left out.

        `response_format`: the form that their text must have, see `ResponseFormat.of`; None: none.
        `sampling`: fields of SamplingParams (`temperature=0`), which replace those of `params`. `stop` has no
        effect, since it is about text: see `stream`. Raises what `logits` raises at the call, and TypeError
        or ValueError for wrong parameters; and while it is iterated BadLogits, ConstraintError, QueueFull,
        ModelClosed, or on a GPU CudaError.
        """
        params = self.with_ids(sampling_params("generate", params, sampling))
        return self._open_engine().generate(ids, params, self._constraints.of(response_format))

    def with_ids(self, params: SamplingParams) -> SamplingParams:
        """`params` with ids in place of texts in `logit_bias` and `dry_sequence_breakers`, as an engine needs
        them; the methods of a model do that by themselves. Raises ValueError for a bias of what is no token.
        """
        return self._texts.with_ids(params)

    def submit(
        self,
        ids: Sequence[int],
        params: SamplingParams | None = None,
        skip_special: bool = True,
        response_format: Any = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> Continuation:
        """Queue a request for what follows `ids`, and return an iterator over its tokens as TokenEvents.

        `response_format`: the form that it must have, see `ResponseFormat.of`; the prompt stays as it is. Any
        number of requests run together, as far as the model's cache has room for them, and share the
        cached part of what their prompts begin with. Errors are those of `stream` at the call, and QueueFull.
        """
        params = self.with_ids(sampling_params("submit", params, sampling))
        reader = TokenReader(self.tokenizer, params.stop, skip_special)
        generation = self._open_engine().submit(ids, params, constraint=self._constraints.of(response_format))
        return Continuation(generation, reader, self._open_engine)

    def submit_beams(
        self,
        ids: Sequence[int],
        beams: BeamParams,
        params: SamplingParams | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> BeamAnswers:
        """Queue a beam search for what follows `ids`, whose answers come when it ends.

        Of the sampling parameters, bias, penalties, `max_tokens`, `stop` and `ignore_eos` count. As many
        beams run in one step as the model was loaded for sequences (`parallel`). Errors are those of
        `submit`.
        """
        params = self.with_ids(sampling_params("submit_beams", params, sampling))
        generation = self._open_engine().submit_beams(ids, beams, params)
        return BeamAnswers(generation, self.tokenizer, params.stop)

    def beams(
        self,
        ids: Sequence[int],
        k: int,
        params: SamplingParams | None = None,
        *,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[BeamAnswer]:
        """The `k` answers that a beam search finds, the best first; see BeamParams and `submit_beams`."""
        beams = BeamParams(k, length_penalty, early_stopping)
        return self.submit_beams(ids, beams, params, **sampling).result()

    def stream(
        self,
        ids: Sequence[int],
        params: SamplingParams | None = None,
        skip_special: bool = True,
        response_format: Any = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> Generator[str, None, None]:
        """The text that follows `ids`, in pieces of whole characters, up to the first stop string.

        No piece has any part of a stop string. Special tokens give no text unless `skip_special` is false,
        but a stop string that spells one stops there. `stats.finish_reason` says afterwards why the text
        ended. Errors as for `generate`, and TokenizerError at the call if the model has no tokenizer.
        """
        params = sampling_params("stream", params, sampling)
        reader = TokenReader(self.tokenizer, params.stop, skip_special)
        tokens = self.generate(ids, params, response_format=response_format)
        return self._text(tokens, reader)

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        tools: Sequence[Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        response_format: Any = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> Generator[str, None, None]:
        """The model's answer to a conversation, in pieces of text as it is generated.

            model.chat("Why is the sky blue?", temperature=0, max_tokens=100)
            model.chat("Name a colour.", response_format={"type": "choice", "choice": ["red", "blue"]})

        Arguments and errors are those of `encode_chat` and `stream`. A keyword that is neither an argument
        nor a field of SamplingParams raises TypeError: what the chat template reads goes into `variables`.
        """
        params = sampling_params("chat", params, sampling)
        form = form_of(response_format)
        ids = self.encode_chat(told(messages, form), tools, variables)
        return self.stream(ids, params, response_format=form)

    def _text(self, tokens: Generator[int, None, None], reader: TokenReader) -> Generator[str, None, None]:
        """The text of `tokens` up to the first stop string, and the reason in `stats` if there was one."""
        with closing(tokens):
            for token in tokens:
                piece = shown(reader.push(token))
                if reader.stopped:
                    break
                if piece:
                    yield piece
            else:
                piece = shown(reader.finish())
        if reader.stopped:
            self.engine.stats.finish_reason = "stop_string"
        if piece:
            yield piece

    def embed(self, texts: Sequence[str] | str, **options: Unpack[VectorKeywords]) -> np.ndarray:
        """float32 [texts, dimensions]: a vector of each text, as the model's files want it to be made.

        `options`: those of `TextVectors.embed`: `prompt`, `dimensions`, `truncate`, `pooling`, `normalize`.
        Raises UnsupportedModel if the model is loaded to write text, ValueError for options out of range,
        ContextExceeded, TokenizerError, BadLogits and ModelClosed.
        """
        self._check_open()
        if self.vectors is None:
            raise UnsupportedModel(
                f"{self.name} is loaded to write text; vectors need task='embed' of kukri.load, or "
                "--embed of llm batch"
            )
        return self.vectors.embed([texts] if isinstance(texts, str) else texts, **options)

    def rerank(
        self, query: str, documents: Sequence[str], instruction: str | None = None, truncate: bool = False
    ) -> np.ndarray:
        """float32 [documents]: how well each document answers the query; see `Reranker.scores`."""
        self._check_open()
        if self.reranker is None:
            from ..embedding.reranker import Reranker

            engine = self._open_engine()
            self.reranker = Reranker(engine, self.tokenizer, None, self.config.hidden, self.embedded)
        return self.reranker.scores(query, documents, instruction, truncate)

    def inspect(
        self,
        prompt: Sequence[int] | Messages,
        *,
        top: int = 10,
        lens: bool | Sequence[int] = False,
        attention: bool | AttentionChoice = False,
        residual: bool = False,
        logits: bool = False,
        states: bool = False,
    ) -> Inspection:
        """What the model computes over a prompt, see Inspection: ids, a text as it is, or messages, which the
        chat template renders.

        - `top`: how many of the likeliest tokens to keep of each distribution.
        - `lens`: the layers whose input goes through output norm and head, the number of layers for what
          leaves the last one; or all.
        - `attention`: the weights to keep; True: all.
        - `residual`, `logits`: keep these.
        - `states`: norms of recurrent states behind each position, not only behind the last.

        Clears the cache. Raises what `encode`, `encode_chat` and `logits` raise, and ValueError for layers,
        heads or positions that there are not, or for more than 2 GiB of what is to be kept.
        """
        from ..inspection.attention import AttentionChoice
        from ..inspection.inspect import InspectOptions, inspect_ids

        choice = (AttentionChoice() if attention else None) if isinstance(attention, bool) else attention
        n_tokens = self._tokenizer.vocab_size if self._tokenizer else None
        options = InspectOptions(top, choice, lens, residual, logits, states, n_tokens)
        return inspect_ids(self._open_engine(), self.prompt_ids(prompt), options)

    def observe(
        self,
        prompt: Sequence[int] | Messages,
        params: SamplingParams | None = None,
        *,
        begun: Sequence[int] = (),
        top: int = 10,
        lens: bool | Sequence[int] = False,
        attention: bool | AttentionChoice = False,
        **sampling: Unpack[SamplingKeywords],
    ) -> ObservedAnswer:
        """An answer to a prompt, with the distribution that each of its tokens was taken from, and whatever
        else `inspect` shows of prompt and answer together.

        `begun`: tokens that the answer begins with. `ObservedAnswer.branch` takes another token at a position
        and goes on from there. The distributions come from a second pass, over all tokens at once.
        Errors are those of `generate` and `inspect`.
        """
        from ..inspection.observed import ObservedAnswer

        params = sampling_params("observe", params, sampling)
        ids = tuple(self.prompt_ids(prompt))
        answer = (*begun, *self.generate([*ids, *begun], params))
        reason = self.stats.finish_reason
        seen = self.inspect((*ids, *answer), top=top, lens=lens, attention=attention)

        def go_on(
            prompt: tuple[int, ...], begun: tuple[int, ...], sampling: dict[str, Any]
        ) -> ObservedAnswer:
            shown: dict[str, Any] = {"top": top, "lens": lens, "attention": attention}
            return self.observe(prompt, params, begun=begun, **shown, **sampling)

        return ObservedAnswer(ids, answer, seen, reason, len(begun), go_on)

    def prompt_ids(self, prompt: Sequence[int] | Messages) -> Sequence[int]:
        """The ids of a prompt that is ids, a text as it is, or messages."""
        if isinstance(prompt, str):
            return self.encode(prompt)
        if len(prompt) and isinstance(prompt[0], Mapping):
            return self.encode_chat(cast("Messages", prompt))
        return cast("Sequence[int]", prompt)

    def score(self, text: str) -> TextScore:
        """The log probability of each token of a text, with its BOS token in front if the model has one."""
        from ..embedding.scoring import score_ids

        return score_ids(self._open_engine(), self.encode(text))

    def answer(
        self, request: GenerationRequest | Messages | None = None, **fields: Unpack[AnswerKeywords]
    ) -> Answer:
        """The model's answer to a request, as an iterator over events: text, thinking, tool calls, its end.

            for event in model.answer("Why is the sky blue?", temperature=0): ...
            model.answer(messages, tools=[get_weather], max_tokens=100).complete().message()

        `request`: a GenerationRequest or the messages of one; `fields`: fields of GenerationRequest or of
        SamplingParams, which replace its own. The request is queued at once. Errors are those of
        `encode_request` and `submit`.
        """
        request = generation_request(request, fields)
        return self.router.answer(request) if self.router else Answer(self.answer_parts(request))

    def answer_parts(self, request: GenerationRequest) -> AnswerParts:
        """What the model's answer to a request is made of; the request is queued. Errors as for `answer`."""
        params = self.with_ids(request.params)
        ids = request.ids if request.ids is not None else self.encode_request(request)
        parser = self.chat_format.parser(request, ids)
        reader = TokenReader(self.tokenizer, params.stop)
        engine, n_prompt = self._open_engine(), len(ids) + len(request.begun)
        place = self.answer_source.place(request, ids, params) if self.answer_source else None
        kept = place.find() if place else None
        if kept is not None and n_prompt + len(kept.tokens) <= self.context:
            return AnswerParts(KeptTokens(kept, n_prompt), reader, parser, request)
        constraint = self.chat_format.constraint(request, ids, self._constraints)
        generation = engine.submit([*ids, *request.begun], params, request.priority, constraint)
        return AnswerParts(generation, reader, parser, request, place)

    def encode_request(self, request: GenerationRequest) -> list[int]:
        """The ids of a request's prompt, whatever `ids` it has. Errors are those of `encode` and
        `encode_chat`, and ValueError for thinking that the model cannot turn on or off."""
        if request.prompt is not None:
            return self.encode(request.prompt)
        if request.messages is None:
            return list(request.ids or ())
        messages, tools, variables = self.chat_format.asked(request)
        try:
            return self.encode_chat(messages, tools, variables)
        except TemplateError as problem:
            split = one_call_a_message(messages)
            if not problem.raised or len(split) == len(messages):
                raise
            return self.encode_chat(split, tools, variables)

    @property
    def chat_format(self) -> ChatFormat:
        """How the model marks thinking and tool calls. Raises TokenizerError if it has no tokenizer."""
        if self._format is None or self._format.template != self.chat_template:
            self._format = ChatFormat(self.name, self.tokenizer, self.chat_template)
        return self._format

    def _check_open(self) -> None:
        if self._machine is None:
            raise ModelClosed(f"{self.name} is closed; load it again")

    def _open_engine(self) -> Engine:
        """The engine of a model that writes text."""
        self._check_open()
        if self.vectors is not None:
            raise UnsupportedModel(self.config.no_text or f"{self.name} is loaded to make vectors of texts")
        return self.engine

    def close(self) -> None:
        """Stop the machine's threads and free its memory. Later calls of other methods raise ModelClosed."""
        if self.router is not None:
            self.router.close()
        machine, self._machine = self._machine, None
        if machine is not None:
            self.engine.close()
            if self._draft is not None:
                self._draft.close()
            if not self.engine.forked:
                machine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
