"""`llm quantize`: a model in fewer bits, as a GGUF file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....runtime.hub.resolve import resolve
from ...console import terminal
from ...console.options import with_options
from ...console.progress import Progress
from ...console.safe_text import one_line, utf8
from ...generation.adapters import named_adapters
from ...quantize.options import QuantizeOptions, named_format, named_recipe
from ...quantize.plan import planned_tensors
from ...quantize.report import remarks, summary
from ...quantize.target import check_target, model_name, target_file

if TYPE_CHECKING:
    from ....quant.recipes.recipes import Recipe
    from ....runtime.model.convert import Convertible


@with_options
def quantize(
    options: QuantizeOptions,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="File, folder, short name, or org/repo[:quant] on the Hub; never changed."
        ),
    ],
    target: Annotated[
        Path, typer.Argument(metavar="DST", help="The GGUF file to write, or a folder for NAME-TYPE.gguf.")
    ],
) -> None:
    """Convert a model to GGUF and quantise it.

    SRC is a Hugging Face folder with safetensors, or a GGUF file. Tokenizer, chat template and metadata are
    carried over; llama.cpp and programs built on it read the result. Its path goes to stdout.
    """
    from ....quant.recipes.quantize import write_quantized
    from ....runtime.model.convert import open_convertible

    recipe = named_recipe(options.kind)
    formats = [named_format(text) for text in options.overrides or []]
    path = resolve(source, Progress)
    name = utf8(model_name(source, path))
    target = target_file(target, name, recipe)
    began = time.perf_counter()
    adapters = named_adapters("--lora", options.lora)
    if adapters and options.calibration is not None:
        raise typer.BadParameter("--lora and --calibration: merge into --type bf16 first, and quantise that")
    model = open_convertible(path, name, adapters)
    check_target(target, path, model.paths, options.force)
    planned, encode = planned_tensors(options, recipe, formats, model, path)
    for line in [*model.notes, *remarks(planned)]:
        terminal.note(line)
    metadata, types = _with_recipe(model, recipe)
    with Progress(target.name, model.n_bytes, "quantising") as progress:
        written = write_quantized(target, metadata, types, planned, encode, model.release, progress.at)
    terminal.note(summary(written, planned, model.n_bytes, time.perf_counter() - began))
    terminal.write(one_line(str(target)) + "\n")


def _with_recipe(model: Convertible, recipe: Recipe) -> tuple[dict[str, object], dict[str, int]]:
    """Metadata that says what was done, and the types of its values."""
    metadata = model.metadata | {"general.file_type": recipe.file_type, "general.quantization_version": 2}
    return metadata, {key: kind for key, kind in model.types.items() if key in model.metadata}
