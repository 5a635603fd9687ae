"""The flags of `run` and `chat`: how to load a model, and how to choose tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console.options import (
    MAX_CONTEXT,
    CpuMoe,
    Deterministic,
    Device,
    DeviceFlag,
    Devices,
    GpuLayers,
    KvType,
    KvTypeFlag,
    NCpuMoe,
    Speculate,
    SplitMode,
    SplitModeFlag,
    TextOrJson,
    Threads,
    WeightCache,
    cpu_moe_layers,
    flag,
    load_options,
)
from ..console.terminal import remark
from .adapters import AdapterOptions
from .caching import CachingOptions
from .input_files import text_or_file
from .prompt import check_utf8
from .routing import RouteOptions, load_routed
from .structured import StructuredOptions
from .thinking import ThinkingOptions
from .tools import ToolOptions

if TYPE_CHECKING:
    from ...runtime.engine.sampling.params import SamplingParams
    from ...runtime.model.model import Model
    from ...runtime.model.options import LoadOptions


LEAST_THREADS_LIKE = 3  # a temperature of 2 is the highest that anybody uses


@dataclass(frozen=True)
class GenerationOptions(
    AdapterOptions, StructuredOptions, ThinkingOptions, ToolOptions, CachingOptions, RouteOptions
):
    """One field for each flag of `run` and `chat`; None is the default of SamplingParams or of the model."""

    system: Annotated[
        str | None,
        flag(
            "-s",
            "--system",
            metavar="TEXT",
            help="System prompt; @FILE takes it from a file, @@ begins a text with @.",
        ),
    ] = None
    file: Annotated[
        list[str] | None,
        flag(
            "-f",
            "--file",
            metavar="FILE",
            help="Put a text file in front of the prompt; may be given several times; - is stdin.",
        ),
    ] = None
    max_tokens: Annotated[
        int | None, flag("-n", "--max-tokens", metavar="N", help="Tokens to write at most; -1: no limit.")
    ] = None
    context: Annotated[
        int | None,
        flag(
            "-c",
            "--context",
            metavar="N",
            min=1,
            max=MAX_CONTEXT,
            help="Context length in tokens; default: the model's.",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        flag("-t", "--temperature", metavar="X", help="0 takes the likeliest token; default: 0.8."),
    ] = None
    top_k: Annotated[
        int | None, flag("--top-k", metavar="N", help="Likeliest tokens kept; 0: all; default: 40.")
    ] = None
    top_p: Annotated[
        float | None, flag("--top-p", metavar="X", help="Probability mass kept; 1: all; default: 0.95.")
    ] = None
    min_p: Annotated[
        float | None,
        flag("--min-p", metavar="X", help="Least probability relative to the best token's; default: 0.05."),
    ] = None
    typical_p: Annotated[
        float | None,
        flag("--typical", "--typical-p", metavar="X", help="Mass of typical tokens kept; default: 1, all."),
    ] = None
    top_n_sigma: Annotated[
        float | None,
        flag("--top-n-sigma", metavar="X", help="Keep logits within so many deviations; default: off."),
    ] = None
    xtc_probability: Annotated[
        float | None,
        flag("--xtc-probability", metavar="X", help="How often top choices are excluded; default: 0, never."),
    ] = None
    xtc_threshold: Annotated[
        float | None,
        flag("--xtc-threshold", metavar="X", help="Probability of a top choice; default: 0.1."),
    ] = None
    presence_penalty: Annotated[
        float | None,
        flag("--presence-penalty", metavar="X", help="Taken off tokens that are there; default: 0."),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        flag("--frequency-penalty", metavar="X", help="Taken off each time a token is there; default: 0."),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        flag("--logit-bias", metavar="ID=X", help="Add X to a token; TEXT=X; may be given several times."),
    ] = None
    dry_multiplier: Annotated[
        float | None,
        flag("--dry-multiplier", metavar="X", help="Penalty on repeated passages (DRY); default: 0, none."),
    ] = None
    dry_base: Annotated[
        float | None,
        flag("--dry-base", metavar="X", help="Factor for each token of a passage; default: 1.75."),
    ] = None
    dry_allowed_length: Annotated[
        int | None,
        flag("--dry-allowed-length", metavar="N", help="Tokens repeated for nothing; default: 2."),
    ] = None
    dry_penalty_last_n: Annotated[
        int | None,
        flag("--dry-penalty-last-n", metavar="N", help="Tokens DRY looks back at; -1: all, as by default."),
    ] = None
    dry_sequence_breakers: Annotated[
        list[str] | None,
        flag(
            "--dry-sequence-breaker",
            metavar="TEXT",
            help="No passage goes beyond this; may be given several times; none: no such text.",
        ),
    ] = None
    dynatemp_range: Annotated[
        float | None,
        flag("--dynatemp-range", metavar="X", help="How far the temperature follows entropy; default: 0."),
    ] = None
    dynatemp_exp: Annotated[
        float | None, flag("--dynatemp-exp", metavar="X", help="Power of the entropy; default: 1.")
    ] = None
    mirostat: Annotated[
        int | None, flag("--mirostat", metavar="0|2", help="2: Mirostat 2 instead of all steps; default: 0.")
    ] = None
    mirostat_lr: Annotated[
        float | None, flag("--mirostat-lr", metavar="X", help="Mirostat's learning rate; default: 0.1.")
    ] = None
    mirostat_ent: Annotated[
        float | None, flag("--mirostat-ent", metavar="X", help="Mirostat's target in bits; default: 5.")
    ] = None
    samplers: Annotated[
        str | None,
        flag("--samplers", metavar="LIST", help="The steps in their order, such as top_k;temperature."),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        flag("--repeat-penalty", metavar="X", help="Penalty on repeated tokens; default: 1, none."),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        flag("--repeat-last-n", metavar="N", help="Tokens the penalty looks back at; default: 64."),
    ] = None
    seed: Annotated[
        int | None, flag("--seed", metavar="N", help="Makes sampling repeatable; -1: random.")
    ] = None
    stop: Annotated[
        list[str] | None,
        flag("--stop", metavar="TEXT", help="Stop where this would appear; may be given several times."),
    ] = None
    raw: Annotated[bool, flag("--raw", help="Continue the text as it is, without the chat template.")] = False
    speculate: Annotated[
        Speculate,
        flag(
            "--speculate",
            help="What proposes tokens that are checked several at a time: prompt and answer (ngram), the "
            "draft model (draft), both (auto), or the model's own layer for that (mtp).",
        ),
    ] = Speculate.auto
    draft: Annotated[
        str | None,
        flag("--draft", metavar="MODEL", help="A smaller model that proposes what may follow."),
    ] = None
    deterministic: Deterministic = False
    kv_type: KvTypeFlag = KvType.auto
    threads: Threads = None
    device: DeviceFlag = Device.auto
    gpu_layers: GpuLayers = None
    devices: Devices = None
    split_mode: SplitModeFlag = SplitMode.auto
    cpu_moe: CpuMoe = False
    n_cpu_moe: NCpuMoe = None
    weight_cache: WeightCache = 0
    no_wrap: Annotated[
        bool, flag("--no-wrap", help="On a terminal, do not break the answer's lines between words.")
    ] = False
    stats: Annotated[bool, flag("--stats", help="Show token counts and speeds on stderr.")] = False
    output: Annotated[TextOrJson, flag("-o", "--output", help="What stdout gets.")] = TextOrJson.text

    @cached_property
    def system_text(self) -> str:
        """The system prompt, "" for none. A usage error if its file cannot be read or is not UTF-8."""
        return text_or_file(self.system or "")

    def sampling(self) -> SamplingParams:
        """SamplingParams of the sampling flags; a usage error for a value out of range or text that is not
        UTF-8.
        """
        from ...runtime.engine.sampling.params import SamplingParams

        names = {field.name for field in fields(SamplingParams)}
        given: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name in names}
        for name in ("max_tokens", "seed"):
            if given[name] == -1:  # as in llama.cpp: no limit, and a random seed
                del given[name]
        check_utf8("a logit bias", "".join(self.logit_bias or ()))
        check_utf8("the system prompt", self.system_text)
        if self.stop is not None:
            check_utf8("a stop string", "".join(self.stop))
            given["stop"] = tuple(self.stop)
        try:
            if self.dry_sequence_breakers is not None:
                given["dry_sequence_breakers"] = _breakers(self.dry_sequence_breakers)
            params = SamplingParams(**{name: value for name, value in given.items() if value is not None})
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None
        self._hint_at_threads()
        return params

    def _hint_at_threads(self) -> None:
        """A remark if `-t 8` was most likely meant as the number of threads, which it is in `llm bench`."""
        t = self.temperature
        if t is not None and t >= LEAST_THREADS_LIKE and float(t).is_integer() and self.threads is None:
            remark(f"(-t {t:g} is the temperature, and makes nonsense; for {t:g} threads: --threads {t:g})")

    def asked(self, model: Model) -> dict[str, Any]:
        """The fields of a GenerationRequest beside the messages and parameters. A usage error for what the
        model cannot do."""
        form = self.response_format
        return {**self.asked_of_thinking(model), **self.asked_of_tools, "response_format": form}

    def load(
        self,
        name: str,
        beams: int = 1,
        parallel: int | None = None,
        contexts: int | None = None,
        task: str = "text",
    ) -> Model:
        """Find or download the model `name` and load it, with room for so many beams, or answers at a time;
        `contexts`: how many whole contexts these share, if not one each. With `--route` both models of that,
        whatever the name. `task`: as in LoadOptions.

        Raises CudaUnavailable before anything is downloaded if there is no CUDA device for `--device cuda`.
        """
        from ...runtime.hub.resolve import resolve
        from ..console.progress import Progress

        if self.device is Device.cuda and self.gpu_layers != 0:
            from ...runtime.model.cuda_device import check_cuda_device

            check_cuda_device()
        options, cache = self.loading(beams, parallel, contexts, task), self.open_cache()

        def load(name: str) -> Model:
            model = load_quietly(resolve(name, Progress), name, options)
            self.begin_prompts(model)
            if cache is not None:
                cache.serve(model)
            return model

        if (names := self.route_names) is not None:
            if options.adapters or options.draft:
                flag_here = "a draft model" if options.draft else "an adapter"
                raise typer.BadParameter(f"--route has two models, and {flag_here} is for one")
            return load_routed(load, names, self.route_policy)
        return load(name)

    def loading(
        self,
        beams: int = 1,
        parallel: int | None = None,
        contexts: int | None = None,
        task: str = "text",
    ) -> LoadOptions:
        """How a model is loaded; a draft model is downloaded first. A usage error for a missing one, and
        for flags that do not go together."""
        from ...runtime.hub.resolve import resolve
        from ..console.progress import Progress

        drafts = self.draft is not None and self.speculate in (Speculate.auto, Speculate.draft)
        if self.speculate is Speculate.draft and not drafts:
            raise typer.BadParameter("--speculate draft needs a draft model: --draft MODEL")
        adapters = self.adapters
        return load_options(
            self.devices,
            device=self.device.value,
            context=self.context,
            threads=self.threads,
            kv_type=self.kv_type.value,
            gpu_layers=self.gpu_layers,
            parallel=parallel,
            speculate=self.speculate.value,
            draft=str(resolve(self.draft, Progress)) if self.draft and drafts else None,
            adapters=adapters,
            split_mode=self.split_mode.value,
            cpu_moe=cpu_moe_layers(self.cpu_moe, self.n_cpu_moe),
            weight_cache=self.weight_cache << 20,
            beams=beams,
            deterministic=self.deterministic,
            contexts=contexts,
            task=task,
        )


def _breakers(texts: list[str]) -> list[str]:
    r"""Sequence breakers as they are typed: \n is a line's end, and "none" is none at all."""
    check_utf8("a sequence breaker", "".join(texts))
    escapes = {"n": "\n", "t": "\t", "\\": "\\"}
    return [re.sub(r"\\([nt\\])", lambda m: escapes[m[1]], each) for each in texts if each != "none"]


def check_texts(model: Model, params: SamplingParams) -> None:
    """A usage error for a logit bias whose text or id is no token of the model."""
    try:
        model.with_ids(params)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


def load_quietly(path: Path, name: str, options: LoadOptions, text: bool = True) -> Model:
    """Call `load_model` with a progress line on stderr, and show its warnings afterwards.

    NumPy's RuntimeWarnings about overflow are suppressed: the sampler reports logits that are not finite.
    """
    import warnings as python_warnings

    from ..console.progress import Loading
    from ..console.terminal import note

    warnings: list[str] = []
    with Loading(name) as loading, python_warnings.catch_warnings():
        python_warnings.simplefilter("ignore", RuntimeWarning)
        from ...runtime.model.loading import load_model

        model = load_model(path, options, warn=warnings.append, progress=loading.at, text=text)
    for warning in warnings:
        note(warning)
    return model
