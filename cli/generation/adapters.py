"""The flags of adapters: what is added to a model when it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ..console.options import flag

if TYPE_CHECKING:
    from ...runtime.adapters.stored import AdapterFile


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

    @property
    def lora_files(self) -> tuple[AdapterFile, ...]:
        """The adapters that the flags name. A usage error for a file that is not there."""
        return named_adapters("--lora", self.lora)


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
