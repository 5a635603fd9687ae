"""Flags that several commands share, and commands whose flags are the fields of a dataclass.

Every flag can also be set as LLM_<FLAG> in the environment, and in the settings file (cli/settings).
LLM_USER_PATH belongs to another tool, and LLM_MODEL does so too: see cli/settings/model.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ...runtime.hub.catalogue import DEFAULT

if TYPE_CHECKING:
    from ...runtime.model.options import LoadOptions

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


class Speculate(StrEnum):
    auto = "auto"
    off = "off"
    ngram = "ngram"
    draft = "draft"
    mtp = "mtp"


class SplitMode(StrEnum):
    auto = "auto"
    layers = "layers"
    tensors = "tensors"


class KvType(StrEnum):
    auto = "auto"
    f16 = "f16"
    f32 = "f32"
    q8_0 = "q8_0"
    q4_0 = "q4_0"
    q8_0_q4_0 = "q8_0/q4_0"  # keys / values
    f16_q8_0 = "f16/q8_0"
    f16_q4_0 = "f16/q4_0"


DeviceFlag = Annotated[Device, flag("--device", help="Where to run.")]
KvTypeFlag = Annotated[
    KvType,
    flag("--kv-type", help="Number format of the KV cache, or keys/values; auto suits it to the model."),
]
Threads = Annotated[int | None, flag("--threads", metavar="N", min=1, max=MAX_THREADS, help=THREADS_HELP)]
GpuLayers = Annotated[
    int | None,
    flag(
        "-ngl",
        "--gpu-layers",
        metavar="N",
        min=0,
        help="Layers that run on the card, the last ones; the others run on the CPU; default: all.",
    ),
]
Devices = Annotated[
    str | None,
    flag("--devices", metavar="N,…", help="Cards that share the model, by number; default: as needed."),
]
Deterministic = Annotated[
    bool, flag("--deterministic", help="Compute each answer by itself: no batch, and nothing shared.")
]
WeightCache = Annotated[
    int,
    flag(
        "--weight-cache",
        metavar="MB",
        min=0,
        help="Space on disk for weights as the CPU reads them, for quicker starts; default: 0, keep none.",
    ),
]
EVERY_LAYER = 1 << 20  # more than any model has
CpuMoe = Annotated[
    bool,
    flag("--cpu-moe", help="The CPU computes experts, from its own memory; all else is on the card."),
]
NCpuMoe = Annotated[
    int | None,
    flag("--n-cpu-moe", metavar="N", min=0, help="The same, in the first N layers that have experts."),
]

SplitModeFlag = Annotated[
    SplitMode, flag("--split-mode", help="How cards share a model; auto: by tensors where possible.")
]


def cpu_moe_layers(every: bool, n: int | None) -> int:
    """How many layers keep their experts on the CPU. A usage error if both flags are given."""
    if every and n is not None:
        raise typer.BadParameter("--cpu-moe is for all layers, --n-cpu-moe for some: not both")
    return EVERY_LAYER if every else n or 0


def load_options(devices: str | None = None, **fields: Any) -> LoadOptions:
    """How a model is loaded, `devices` as typed. A usage error for flags that do not go together."""
    from ...runtime.model.options import LoadOptions, device_numbers

    try:
        return LoadOptions(devices=device_numbers(devices), **fields)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


class TextOrJson(StrEnum):
    text = "text"
    json = "json"


def with_options(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """Replace the parameter `options`, a dataclass, of a command by one flag for each of its fields, but
    those `without` one, which have their defaults.

    typer makes flags of parameters; a dataclass keeps commands with many flags short, and several commands
    can share one. A field's annotation is what a parameter's would be: Annotated[type, flag(...)].
    """
    own_hints = get_type_hints(command, include_extras=True)
    options_type = own_hints["options"]
    hints = get_type_hints(options_type, include_extras=True)
    flags = [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=_default(f), annotation=hints[f.name]
        )
        for f in fields(options_type)
        if f.name not in without
    ]
    own = [
        parameter.replace(annotation=own_hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "options"
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        options = options_type(**{p.name: values.pop(p.name) for p in flags})
        command(**values, options=options)

    parameters = [*own, *flags]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _default(field: Field[Any]) -> Any:
    """A field's default, as inspect spells it; a field without one is a flag that must be given."""
    return inspect.Parameter.empty if field.default is MISSING else field.default
