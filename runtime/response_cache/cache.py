"""ResponseCache: the answers of a model on disk, for requests whose answer is the same each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ...quant.errors import DamagedFile
from ...untrusted import parse_json
from ..answers.kept import KeptAnswer, Place
from ..answers.request import GenerationRequest
from ..engine.sampling.logprobs import TokenLogprobs
from ..engine.sampling.params import SamplingParams
from ..engine.sampling.sampler import is_repeatable
from ..engine.stats import FinishReason
from .key import about_model, request_key
from .store import Store

if TYPE_CHECKING:
    from ..model.model import Model

MOST_BYTES = 1 << 30
MOST_MARKS = 1 << 24  # of an answer with the log probabilities of its tokens, see untrusted.Limits
LONGEST = 64 << 20  # bytes of an answer; longer ones are not kept


class ResponseCache:
    """Answers in the folder `folder`, for any number of models, processes and threads.

        cache = kukri.ResponseCache("answers")
        cache.serve(model)
        model.answer("Why is the sky blue?", temperature=0).complete()

    `serve` has a model ask it first. A request is known again by the ids of its prompt, by all that it asks
    for and by the model (`key.py`); it is only kept where its answer would be the same again: with a seed, or
    where nothing is drawn, as at temperature 0. What was used longest ago goes when the file has over
    `most_bytes`. `warn` is called with a line if the file cannot be used any more; the models then compute.

    Raises DamagedFile for a file that is damaged or of another program, OSError for a folder that cannot be
    used.
    """

    def __init__(
        self,
        folder: str | Path,
        most_bytes: int = MOST_BYTES,
        warn: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._store = Store(Path(folder), most_bytes)
        self._warn = warn
        self._broken = False

    def serve(self, model: Model) -> None:
        """Let a model take its answers from here, and keep them here."""
        from ... import __version__

        model.answer_source = _Answers(self, about_model(model, __version__), model.config.vocab_size)

    def get(self, key: bytes) -> KeptAnswer | None:
        """The answer with this key; None for none, also where what is kept is none."""
        raw = self._tried(lambda: self._store.get(key))
        return None if raw is None else _read(raw)

    def put(self, key: bytes, answer: KeptAnswer) -> None:
        """Keep an answer."""
        raw = _written(answer)
        if len(raw) <= LONGEST:
            self._tried(lambda: self._store.put(key, raw))

    def _tried(self, use: Callable[[], bytes | None]) -> bytes | None:
        if self._broken:
            return None
        try:
            return use()
        except (OSError, DamagedFile) as problem:
            self._broken = True
            text = problem.strerror if isinstance(problem, OSError) else str(problem)
            self._warn(f"answers are not kept: {text}")
            return None

    def close(self) -> None:
        """Close the file; models that still ask find nothing."""
        self._broken = True
        self._store.close()


@dataclass(frozen=True)
class _Answers:
    """The answers of one model; its AnswerSource."""

    cache: ResponseCache
    about: dict[str, Any]
    n_vocab: int

    def place(self, request: GenerationRequest, ids: Sequence[int], params: SamplingParams) -> Place | None:
        if params.prompt_logprobs is not None or not is_repeatable(params):
            return None
        return _Place(self.cache, request_key(self.about, request, ids, params), self.n_vocab)


@dataclass(frozen=True)
class _Place:
    cache: ResponseCache
    key: bytes
    n_vocab: int

    def find(self) -> KeptAnswer | None:
        found = self.cache.get(self.key)
        return None if found is None or max(found.tokens, default=0) >= self.n_vocab else found

    def keep(self, answer: KeptAnswer) -> None:
        self.cache.put(self.key, answer)


def _written(answer: KeptAnswer) -> bytes:
    fields: dict[str, Any] = {"tokens": [int(token) for token in answer.tokens], "reason": answer.reason}
    if answer.complete is not None:
        fields["complete"] = answer.complete
    if answer.logprobs:
        fields["logprobs"] = [[each.id, each.logprob, each.top] for each in answer.logprobs]
    return json.dumps(fields, separators=(",", ":")).encode()


def _read(raw: bytes) -> KeptAnswer | None:
    """The answer that bytes have; None if they are of none: somebody else may have written to the file."""
    try:
        fields = parse_json(raw, "a kept answer", MOST_MARKS, DamagedFile)
        tokens, reason, complete = fields["tokens"], fields["reason"], fields.get("complete")
        logprobs = [
            TokenLogprobs(int(id_), float(logprob), tuple((int(a), float(b)) for a, b in top))
            for id_, logprob, top in fields.get("logprobs", ())
        ]
    except (DamagedFile, KeyError, TypeError, ValueError, AttributeError):
        return None
    sound = (
        isinstance(tokens, list)
        and all(type(token) is int and token >= 0 for token in tokens)
        and reason in get_args(FinishReason)
        and complete in (None, True, False)
        and len(logprobs) in (0, len(tokens))
    )
    return KeptAnswer(tokens, reason, complete, logprobs) if sound else None
