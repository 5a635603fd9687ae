"""How commands are told their model, which one they take that is told none, and what to say about that.

`-m`, then LLM_MODEL, then the settings file, then the tiny model of the catalogue.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from ...runtime.hub.catalogue import BY_NAME, DEFAULT, Entry
from ...runtime.hub.errors import ModelNotFound
from ...runtime.hub.names import HubName, looks_like_path, parse_name
from ..console import terminal
from ..console.completion import model_names

VARIABLE = "LLM_MODEL"


def named_by_user(ctx: typer.Context, name: str) -> bool:
    """Whether the parameter `name` stands on the command line."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def prefer_environment(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """A callback of `-m`: the model of LLM_MODEL unless the flag itself is given.

    It goes before the settings file, whose value arrives here as `value`.
    """
    if param.name is None or named_by_user(ctx, param.name) or ctx.resilient_parsing:
        return value
    name = from_environment()
    if name is None:
        return value
    return [name] if param.multiple else name


def from_environment() -> str | None:
    """The model of LLM_MODEL; None if it is not set, or names a model of the other program called llm.

    That program (Simon Willison's) has the same variable, for names such as gpt-4o-mini. What kukri can know
    counts: a path, an address, a short name, org/repo. Anything else is ignored, with a remark.
    """
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    try:
        parse_name(name)
    except ModelNotFound:
        if not looks_like_path(name) and "://" not in name:
            terminal.remark(f"{VARIABLE}={name} is no model that kukri knows, and is ignored")
            return None
    return name


_MODEL_HELP = "File, folder, short name, or org/repo[:quant] on the Hub"
Model_ = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help=f"{_MODEL_HELP}; default: what `llm use` chose, else {DEFAULT}.",
        callback=prefer_environment,
        autocompletion=model_names,
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help=f"{_MODEL_HELP}.", show_default=False, autocompletion=model_names),
]
ModelBeside = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="The same as the argument.",
        autocompletion=model_names,
    ),
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help=f"{_MODEL_HELP}; may be given several times.",
        callback=prefer_environment,
        autocompletion=model_names,
    ),
]


def one_model(argument: str | None, named: str | None) -> str:
    """The model of a command that takes it as an argument or with -m. A usage error for none or two."""
    if argument is not None and named is not None and argument != named:
        raise typer.BadParameter(f"two models are named, {argument} and {named}; this command takes one")
    model = argument if argument is not None else named
    if model is None:
        raise typer.BadParameter("no model is named: give a file, a folder, a short name or org/repo[:quant]")
    return model


def lasting_name(model: str) -> str:
    """A model's name as files hold it: files and folders by their whole path, since commands run anywhere."""
    parsed = parse_name(model)
    if isinstance(parsed, Entry):
        return parsed.name
    if isinstance(parsed, HubName):
        return f"{parsed.repo}:{parsed.quant}" if parsed.quant else parsed.repo
    return os.path.abspath(parsed)


def chosen_model(named: str | None) -> str:
    """The model that `run` and `chat` take. If that is the tiny default, a terminal is told of a better one,
    until `llm use` has chosen one, which may be the same."""
    if named is not None:
        return named
    if terminal.is_terminal(sys.stderr) and terminal.is_terminal(sys.stdout):
        better = suggested()
        what = f"; {advice(better)}" if better else ""
        terminal.remark(f"{DEFAULT} is a tiny model for trying things out{what}")
    return DEFAULT


def advice(entry: Entry) -> str:
    """What to type for a model that suits this machine."""
    return f"llm use {entry.name} chooses one that suits this machine ({size(entry)})"


def size(entry: Entry) -> str:
    """The size of a model's file for people, with "~" if it is an estimate."""
    from ...quant.units import human_bytes

    return ("" if entry.n_bytes is not None else "~") + human_bytes(entry.about_bytes)


def suggested() -> Entry | None:
    """The model of the catalogue that suits this machine; None if that is none but the default."""
    from ...runtime.hub.recommend import recommended
    from ...runtime.model.cuda_device import gpu_memory
    from ...runtime.model.memory_check import available_memory

    best = recommended(available_memory(), gpu_free=gpu_memory())
    return None if best is BY_NAME[DEFAULT] else best
