"""Loads and scores the models of `llm eval` one after another, each beside the baseline."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...quant.units import human_bytes
from ...runtime.adapters.stored import NO_ADAPTERS, Adapters
from ...runtime.hub.errors import StoreError
from ...runtime.hub.resolve import resolve
from ...runtime.model.memory_check import OVERHEAD, NotEnoughMemory, available_memory
from ..console.description import Description, describe
from ..console.progress import Progress
from ..console.terminal import note
from ..console.wording import count
from ..generation.options import load_quietly
from .progress import Scoring
from .report import Report
from .results import Result, about_files, about_saved, empty, told_scores
from .text import EvalText

if TYPE_CHECKING:
    from ...runtime.evaluation.saved_logits import LogitsWriter, SavedLogits
    from ...runtime.evaluation.scores import Evaluation
    from ...runtime.model.model import Model


@dataclass(frozen=True)
class Plan:
    """The settings that every model of one `llm eval` is run with."""

    text: EvalText
    context: int
    limit: int | None
    device: str
    baseline_device: str
    threads: int | None
    kv_type: str
    save: Path | None
    adapters: Adapters = NO_ADAPTERS  # of the models that are scored


@dataclass(frozen=True)
class Subject:
    """A model to score; `label` is its name in the tables."""

    name: str
    path: Path
    about: Description

    @classmethod
    def find(cls, name: str) -> Subject:
        """Find or download the model `name`, and read its description."""
        path = resolve(name, Progress)
        return cls(name, path, describe(path))

    @property
    def label(self) -> str:
        return Path(self.name).name if Path(self.name).exists() else self.name


@dataclass(frozen=True)
class Baseline:
    """The baseline: a loaded model with its windows of the text, or saved logits."""

    about: Result
    windows: np.ndarray
    vocab_size: int
    model: Model | None = None
    saved: SavedLogits | None = None

    @property
    def logits(self) -> Any:
        """The baseline as an argument of `evaluate`."""
        return self.model.engine.logits_in_parts if self.model else self.saved


def measure(plan: Plan, subjects: Sequence[Subject], baseline: Subject | Path | None) -> Report:
    """Score all models, one loaded at a time, beside the baseline: a model or a file of saved logits."""
    windows = [_windows(plan, subject) for subject in subjects]
    results = []
    base_result: Result | None = None
    with ExitStack() as stack:
        base = None
        if isinstance(baseline, Subject):
            _check_memory(subjects, baseline)
            base = _live(plan, baseline, stack)
        elif baseline:
            base = _saved(plan, baseline)
        if base:
            windows = [_same(*pair, base) for pair in zip(subjects, windows, strict=True)]
        for subject, of_subject in zip(subjects, windows, strict=True):
            scores, result = _measure(plan, subject, of_subject, base)
            results.append(result)
            if base and base_result is None:
                base_result = base.about | told_scores(scores, of_baseline=True)
    return Report(plan.text.name, plan.text.sha256, plan.context, base_result, results)


def _windows(plan: Plan, subject: Subject) -> np.ndarray:
    """The windows of the text by a model's tokenizer, without loading the model."""
    from ...runtime.model.source import check_embedded, check_writes_text, open_source
    from ...tokenizer import TokenizerError

    source = open_source(subject.path)
    check_writes_text(source.config)
    if source.tokenizer is None:
        raise TokenizerError(f"{source.name} has no tokenizer, so it cannot read a text")
    windows = plan.text.windows(source.tokenizer, plan.context, plan.limit)
    check_embedded(source.name, source.tokenizer, windows.ravel(), source.config.vocab_size)
    return windows


def _live(plan: Plan, subject: Subject, stack: ExitStack) -> Baseline:
    windows = _windows(plan, subject)
    model = stack.enter_context(_load(plan, subject, plan.baseline_device, NO_ADAPTERS))
    return Baseline(_about(subject, model), windows, model.config.vocab_size, model=model)


def _saved(plan: Plan, path: Path) -> Baseline:
    """Raises DamagedFile for a broken file, ValueError for one of another text or other windows."""
    from ...runtime.evaluation.saved_logits import SavedLogits

    saved = SavedLogits(path)
    if saved.metadata.get("text_sha256") != plan.text.sha256:
        raise ValueError(f"{path.name} holds logits of another text than {plan.text.name}")
    if saved.windows.shape[1] != plan.context:
        raise ValueError(
            f"{path.name} holds windows of {saved.windows.shape[1]} tokens, not of {plan.context} (-c)"
        )
    n = len(saved.windows) if plan.limit is None else plan.limit // plan.context
    about = about_saved(saved.metadata) | {"path": str(path)}
    return Baseline(about, saved.windows[:n], saved.vocab_size, saved=saved)


def _same(subject: Subject, windows: np.ndarray, base: Baseline) -> np.ndarray:
    """The windows, if the model and its baseline cut the text into the same tokens; else ValueError."""
    n = min(len(windows), len(base.windows))
    if not np.array_equal(windows[:n], base.windows[:n]):
        raise ValueError(
            f"{subject.label} makes other tokens of the text than {base.about['name']}, "
            "so their predictions cannot be compared"
        )
    if n < len(windows):
        left = len(windows) - n
        note(f"{base.about['name']} holds {count(n, 'window')}; {left} more of the text are left out")
    return windows[:n]


def _measure(
    plan: Plan, subject: Subject, windows: np.ndarray, base: Baseline | None
) -> tuple[Evaluation, Result]:
    """Load a model, score it, and close it."""
    from ...runtime.evaluation.scores import evaluate

    with _load(plan, subject, plan.device, plan.adapters) as model:
        vocab_size = model.config.vocab_size
        if base and base.vocab_size != vocab_size:
            raise ValueError(
                f"{subject.label} has a vocabulary of {vocab_size} and {base.about['name']} one of "
                f"{base.vocab_size}, so their predictions cannot be compared"
            )
        writer = _writer(plan.save, plan, subject, vocab_size, windows) if plan.save else nullcontext()
        start = perf_counter()
        with Scoring(subject.label, len(windows)) as scoring, writer as save:
            scores = evaluate(
                model.engine.logits_in_parts,
                windows,
                base.logits if base else None,
                save=save,
                progress=scoring.at,
                threads=plan.threads,
            )
        seconds = perf_counter() - start
        about = _about(subject, model)
        if plan.adapters:
            about["name"] = f"{about['name']} + {plan.adapters.described}"
        return scores, about | told_scores(scores) | {"seconds": seconds}


def _load(plan: Plan, subject: Subject, device: str, adapters: Adapters) -> Model:
    from ...runtime.model.options import LoadOptions

    options = LoadOptions(device, plan.context, plan.threads, plan.kv_type, adapters=adapters)
    return load_quietly(subject.path, subject.label, options, text=False)


def _writer(path: Path, plan: Plan, subject: Subject, vocab_size: int, windows: np.ndarray) -> LogitsWriter:
    """The bytes of the file for the logits; StoreError if the disk has no room for it."""
    from ...runtime.evaluation.saved_logits import LogitsWriter, saved_bytes

    n, context = windows.shape
    folder = path.absolute().parent
    need, free = saved_bytes(n, context, vocab_size), shutil.disk_usage(folder).free
    if need > free:
        raise StoreError(
            f"the logits of {count(n, 'window')} take {human_bytes(need)}, but {folder} has "
            f"{human_bytes(free)} free; --limit takes less of the text"
        )
    about = {key: str(value) for key, value in about_files(subject.about).items()}
    metadata = {"model": subject.label, "text_sha256": plan.text.sha256, **about}
    return LogitsWriter(path, windows, vocab_size, metadata)


def _check_memory(subjects: Sequence[Subject], baseline: Subject) -> None:
    """Raise NotEnoughMemory if the largest model does not fit beside the baseline. Nothing is loaded yet."""
    largest = max(subjects, key=lambda subject: subject.about.n_bytes)
    need = largest.about.n_bytes + baseline.about.n_bytes + OVERHEAD
    free = available_memory()
    if free is not None and need > free:
        raise NotEnoughMemory(
            f"{largest.label} and its baseline {baseline.label} need about {human_bytes(need)} of memory "
            f"together, but {human_bytes(free)} are free; save the baseline's logits with "
            "--save-logits FILE and compare with --baseline FILE"
        )


def _about(subject: Subject, model: Model) -> Result:
    machine = model.engine.machine
    return empty() | {
        "name": subject.label,
        "path": str(subject.path),
        **about_files(subject.about),
        "device": type(machine).__name__.removesuffix("Machine").lower(),
        "n_threads": getattr(machine, "n_threads", 1),
    }
