"""Flags that several commands share. Each one can also be set as LLM_<FLAG> in the environment.

`LLM_MODEL` and `LLM_USER_PATH` are left alone: another tool reads those.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ...runtime.hub.catalogue import DEFAULT
from .prompt import check_utf8

if TYPE_CHECKING:
    from ...runtime.engine.sampler import SamplingParams
    from ...runtime.model.model import Model
    from ...runtime.model.options import LoadOptions

Model_ = Annotated[
    str,
    typer.Option(
        "-m", "--model", metavar="MODEL", help="File, folder, short name, or org/repo[:quant] on the Hub."
    ),
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="File, folder, short name, or org/repo[:quant] on the Hub.")
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="File, folder, short name, or org/repo[:quant] on the Hub; may be given several times.",
    ),
]
DEFAULT_MODEL = DEFAULT
MAX_CONTEXT = 2**31 - 1  # positions are int32
MAX_THREADS = 1024  # as `load_model` has it, whose module is slow to import
THREADS_HELP = "CPU threads; default: one a physical core that the process may use."


def flag(*names: str, help: str, **more: Any) -> Any:
    """A typer option that LLM_<LONG NAME> can set as well; the last of `names` is the long one."""
    variable = "LLM_" + names[-1].removeprefix("--").upper().replace("-", "_")
    return typer.Option(*names, envvar=variable, show_envvar=False, help=help, **more)


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class KvType(StrEnum):
    auto = "auto"
    f16 = "f16"
    f32 = "f32"
    q8_0 = "q8_0"
    q4_0 = "q4_0"


GpuLayers = Annotated[
    int | None,
    flag(
        "-ngl",
        "--gpu-layers",
        metavar="N",
        min=0,
        help="Layers that run on the GPU, the last ones; the others run on the CPU; default: all.",
    ),
]


class TextOrJson(StrEnum):
    text = "text"
    json = "json"


@dataclass(frozen=True)
class GenerationOptions:
    """How to load a model and how to write with it. None: the default of SamplingParams or of the model."""

    system: Annotated[str | None, flag("-s", "--system", metavar="TEXT", help="System prompt.")] = None
    max_tokens: Annotated[
        int | None, flag("-n", "--max-tokens", metavar="N", help="Tokens to write at most.")
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
    repeat_penalty: Annotated[
        float | None,
        flag("--repeat-penalty", metavar="X", help="Penalty on repeated tokens; default: 1, none."),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        flag("--repeat-last-n", metavar="N", help="Tokens the penalty looks back at; default: 64."),
    ] = None
    seed: Annotated[int | None, flag("--seed", metavar="N", help="Makes sampling repeatable.")] = None
    stop: Annotated[
        list[str] | None,
        flag("--stop", metavar="TEXT", help="Stop where this would appear; may be given several times."),
    ] = None
    raw: Annotated[bool, flag("--raw", help="Continue the text as it is, without the chat template.")] = False
    kv_type: Annotated[
        KvType, flag("--kv-type", help="Number format of the KV cache; auto suits it to the model.")
    ] = KvType.auto
    threads: Annotated[
        int | None, flag("--threads", metavar="N", min=1, max=MAX_THREADS, help=THREADS_HELP)
    ] = None
    device: Annotated[Device, flag("--device", help="Where to run.")] = Device.auto
    gpu_layers: GpuLayers = None
    stats: Annotated[bool, flag("--stats", help="Show token counts and speeds on stderr.")] = False
    output: Annotated[TextOrJson, flag("-o", "--output", help="What stdout gets.")] = TextOrJson.text

    def sampling(self) -> SamplingParams:
        """The sampling flags as the runtime takes them; a usage error if one is out of range, or if a text
        among the flags is not UTF-8."""
        from ...runtime.engine.sampler import SamplingParams

        names = {field.name for field in fields(SamplingParams)}
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name in names}
        check_utf8("the system prompt", self.system or "")
        if self.stop is not None:
            check_utf8("a stop string", "".join(self.stop))
            given["stop"] = tuple(self.stop)
        try:
            return SamplingParams(**{name: value for name, value in given.items() if value is not None})
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None

    def load(self, name: str) -> Model:
        """Find or fetch the model `name` and load it.

        Raises CudaUnavailable before anything is downloaded if `--device cuda` has no GPU to run on.
        """
        from ...runtime.hub.resolve import resolve
        from ...runtime.model.options import LoadOptions
        from .progress import Progress

        if self.device is Device.cuda and self.gpu_layers != 0:
            from ...runtime.model.cuda_device import check_cuda_device

            check_cuda_device()
        return load_quietly(
            resolve(name, Progress),
            name,
            LoadOptions(self.device.value, self.context, self.threads, self.kv_type.value, self.gpu_layers),
        )


def load_quietly(path: Path, name: str, options: LoadOptions, text: bool = True) -> Model:
    """`load_model` with a line that shows its progress meanwhile, and its warnings afterwards."""
    from .progress import Loading
    from .terminal import note

    warnings: list[str] = []
    with Loading(name) as loading:
        from ...runtime.model.loading import load_model

        model = load_model(path, options, warn=warnings.append, progress=loading.at, text=text)
    for warning in warnings:
        note(warning)
    return model


def with_generation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `options: GenerationOptions` of a command by one flag a field."""
    hints = get_type_hints(GenerationOptions, include_extras=True)
    flags = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(GenerationOptions)
    ]
    own_hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=own_hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "options"
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        options = GenerationOptions(**{p.name: values.pop(p.name) for p in flags})
        command(**values, options=options)

    parameters = [*own, *flags]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper
