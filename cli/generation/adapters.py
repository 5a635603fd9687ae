"""The flags of adapters: what is added to a model when it is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ..console.options import flag

if TYPE_CHECKING:
    from ...runtime.adapters.stored import AdapterFile, Adapters


@dataclass(frozen=True)
class AdapterOptions:
    """One field for each flag."""

    lora: Annotated[
        list[str] | None,
        flag(
            "--lora",
            metavar="FILE[:SCALE]",
            help="A LoRA adapter (PEFT folder or GGUF file) beside the weights; may be given several times.",
        ),
    ] = None
    control_vector: Annotated[
        list[str] | None,
        flag(
            "--control-vector",
            metavar="FILE[:SCALE]",
            help="A control vector (GGUF file) to steer by; may be given several times.",
        ),
    ] = None
    control_vector_layers: Annotated[
        str | None,
        flag(
            "--control-vector-layers",
            metavar="FIRST-LAST",
            help="The layers behind which control vectors act; default: all that they have.",
        ),
    ] = None

    @property
    def adapters(self) -> Adapters:
        """What the flags name. A usage error for a file that is not there, or layers that are no range."""
        from ...runtime.adapters.stored import Adapters

        lora, vectors = (
            named_adapters("--lora", self.lora),
            named_adapters("--control-vector", self.control_vector),
        )
        if self.control_vector_layers is None:
            return Adapters(lora, vectors)
        text = self.control_vector_layers
        layers = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text)
        if not layers:
            raise typer.BadParameter(f"--control-vector-layers takes FIRST-LAST, such as 10-20, not {text!r}")
        if not vectors:
            raise typer.BadParameter("--control-vector-layers goes with --control-vector")
        try:
            return Adapters(lora, vectors, (int(layers[1]), int(layers[2] or layers[1])))
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None


def named_adapters(name: str, texts: list[str] | None) -> tuple[AdapterFile, ...]:
    """The files that the values of the flag `name` name. A usage error for one that is not there."""
    if not texts:
        return ()
    from ...runtime.adapters.stored import AdapterFile

    files = tuple(AdapterFile.parse(text) for text in texts)
    for file in files:
        if not file.path.exists():
            raise typer.BadParameter(f"{name}: there is no file or folder {str(file.path)!r}")
    return files
