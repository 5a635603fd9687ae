"""`llm quantize`: a model in fewer bits, as a GGUF file."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....quant.units import human_bytes
from ....runtime.hub import files
from ....runtime.hub.names import HubName, parse_name
from ....runtime.hub.resolve import resolve
from ...console import terminal
from ...console.options import flag, with_options
from ...console.progress import Progress
from ...console.safe_text import one_line, utf8
from ...generation.adapters import named_adapters

if TYPE_CHECKING:
    from ....quant.block import BlockFormat
    from ....quant.recipes.quantize import Encoder, QuantizedFile
    from ....quant.recipes.recipes import PlannedTensor, Recipe
    from ....runtime.calibration.encoder import CalibratedEncoder
    from ....runtime.model.convert import Convertible

DEFAULT_TEXT = "default"  # of --calibration


def _type_names(incomplete: str) -> list[str]:
    """The types that begin with `incomplete`, for completion in a shell."""
    from ....quant.recipes.recipes import ALIASES, RECIPES

    return sorted(name for name in {*RECIPES, *ALIASES} if name.startswith(incomplete.lower()))


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """The flags of `llm quantize`."""

    kind: Annotated[
        str,
        flag(
            "--type",
            metavar="TYPE",
            help="f32, f16, bf16, q8_0 (int8), q4_0 … q6_k, iq4_nl, mxfp4, nvfp4, int4, …",
            autocompletion=_type_names,
        ),
    ]
    overrides: Annotated[
        list[str] | None,
        flag(
            "--tensor-type",
            metavar="PATTERN=TYPE",
            help="Another format for tensors whose names match; may be given several times.",
        ),
    ] = None
    allow_requantize: Annotated[
        bool, flag("--allow-requantize", help="Also read files that are quantised already.")
    ] = False
    zero_nonfinite: Annotated[
        bool, flag("--zero-nonfinite", help="Write 0 for weights that are NaN or infinite.")
    ] = False
    calibration: Annotated[
        str | None,
        flag(
            "--calibration",
            metavar="TEXT",
            help="Round by what the model computes while it reads this text file; `default`: one that ships.",
        ),
    ] = None
    bits: Annotated[
        float | None,
        flag(
            "--bits",
            metavar="X",
            min=1,
            max=16,
            help="Of int4: bits a weight at most; default: as q4_k_m has.",
        ),
    ] = None
    lora: Annotated[
        list[str] | None,
        flag(
            "--lora",
            metavar="FILE[:SCALE]",
            help="Merge a LoRA adapter (PEFT folder or GGUF file) first; may be given several times.",
        ),
    ] = None
    force: Annotated[bool, flag("--force", help="Replace DST if it is there.")] = False
    threads: Annotated[
        int | None, flag("--threads", metavar="N", min=1, help="CPU threads; default: one a processor.")
    ] = None


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

    recipe = _recipe(options.kind)
    formats = [_override(text) for text in options.overrides or []]
    path = resolve(source, Progress)
    name = utf8(model_name(source, path))
    target = _target(target, name, recipe)
    began = time.perf_counter()
    adapters = named_adapters("--lora", options.lora)
    if adapters and options.calibration is not None:
        raise typer.BadParameter("--lora and --calibration: merge into --type bf16 first, and quantise that")
    model = open_convertible(path, name, adapters)
    _check_target(target, path, model.paths, options.force)
    planned, encode = _planned(options, recipe, formats, model, path)
    for line in [*model.notes, *remarks(planned)]:
        terminal.note(line)
    metadata, types = _with_recipe(model, recipe)
    with Progress(target.name, model.n_bytes, "quantising") as progress:
        written = write_quantized(target, metadata, types, planned, encode, model.release, progress.at)
    terminal.note(summary(written, planned, model.n_bytes, time.perf_counter() - began))
    terminal.write(one_line(str(target)) + "\n")


def _planned(
    options: QuantizeOptions,
    recipe: Recipe,
    formats: list[tuple[str, BlockFormat]],
    model: Convertible,
    path: Path,
) -> tuple[list[PlannedTensor], Encoder]:
    """The format of every tensor, and the encoder that makes their blocks.

    With a calibration text, int4 spends its budget of bits by what rounding each matrix costs.
    """
    from ....quant.recipes.quantize import check_plan, uncalibrated_encoder
    from ....quant.recipes.recipes import plan

    by_importance = options.calibration is not None
    has_budget = options.kind.lower() == "int4" and not formats
    if options.bits is not None and not has_budget:
        raise typer.BadParameter("--bits goes with --type int4, without --tensor-type")

    def settled(planned: list[PlannedTensor]) -> list[PlannedTensor]:
        _check_quantised(planned, options.allow_requantize)
        return check_plan(planned, options.zero_nonfinite, model.release)

    recommended = plan(recipe, model.tensors, model.model_shape, by_importance, model.is_gguf, formats)
    planned = settled(_budgeted(recommended, options.bits) if has_budget else recommended)
    if options.calibration is None:
        if has_budget:
            terminal.note(
                "without --calibration, int4 treats all matrices alike; `--calibration default` does not"
            )
        return planned, uncalibrated_encoder(options.threads, options.zero_nonfinite)
    calibrated = _calibrated(path, options.calibration, options.threads, options.zero_nonfinite)
    if has_budget:
        planned = settled(_budgeted(recommended, options.bits, _sensitivity(calibrated)))
    return calibrated.execution_order(planned), calibrated


def _budgeted(
    planned: list[PlannedTensor], bits: float | None, sensitivity: Mapping[str, float] | None = None
) -> list[PlannedTensor]:
    from ....quant.recipes.bit_allocation import allocate_bits

    n_bytes = sum(each.record.n_bytes for each in planned)
    if bits is not None:
        n_bytes = int(bits / 8 * sum(each.tensor.n_weights for each in planned))
    try:
        return allocate_bits(planned, n_bytes, sensitivity)
    except ValueError as problem:
        raise typer.BadParameter(f"--bits is too small for this model: {problem}") from None


def _sensitivity(calibrated: CalibratedEncoder) -> dict[str, float]:
    from ...console.progress import StatusLine

    with StatusLine() as line:
        return calibrated.sensitivity(
            lambda done, of: line.show(f"measuring what matrices lose by rounding: {done} of {of} kinds")
        )


def _calibrated(path: Path, text: str, threads: int | None, zero_nonfinite: bool) -> CalibratedEncoder:
    from ....runtime.calibration.encoder import CalibratedEncoder, TextTooShort, calibration_windows
    from ....runtime.model.source import open_source
    from ....tokenizer import TokenizerError
    from ...console.bounded_io import TooLong

    source = open_source(path)
    tokenizer = source.tokenizer
    if tokenizer is None:
        raise TokenizerError("the source has no tokenizer to read a calibration text with")
    try:
        ids = tokenizer.encode(_calibration_text(text))
        windows = calibration_windows(ids, tokenizer.bos_id if tokenizer.add_bos else None)
    except (TextTooShort, TooLong, OSError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise typer.BadParameter(f"{text}: {why}", param_hint="--calibration") from None
    threads = threads or len(os.sched_getaffinity(0))
    return CalibratedEncoder(source.config, source.tensors, source.release, windows, threads, zero_nonfinite)


def _calibration_text(named: str) -> str:
    """The contents of the file `named`, or for `default` the text that comes with kukri, unless a file has
    that name. Raises OSError or TooLong."""
    from ....runtime.calibration.encoder import default_text
    from ...console.bounded_io import read_file
    from ...eval.text import LONGEST_TEXT

    if named == DEFAULT_TEXT and not Path(named).exists():
        return default_text()
    return read_file(Path(named), LONGEST_TEXT).decode("utf-8", errors="replace")


def _recipe(kind: str) -> Recipe:
    from ....quant.recipes.recipes import ALIASES, RECIPES, find_recipe

    recipe = find_recipe(kind)
    if recipe is None:
        raise typer.BadParameter(f"no type is called {kind!r}; there are {', '.join([*RECIPES, *ALIASES])}")
    return recipe


def _override(text: str) -> tuple[str, BlockFormat]:
    import re

    from ....quant.formats import FORMATS

    pattern, equals, name = text.rpartition("=")
    if not equals or not pattern:
        raise typer.BadParameter(f"--tensor-type takes PATTERN=TYPE, not {text!r}")
    if name.upper() not in FORMATS:
        raise typer.BadParameter(f"no format is called {name!r}; there are {', '.join(FORMATS)}")
    try:
        re.compile(pattern)
    except re.error as problem:
        raise typer.BadParameter(f"{pattern!r} is no pattern: {problem}") from None
    return pattern, FORMATS[name.upper()]


def model_name(source: str, path: Path) -> str:
    """What to call a model, without the format it has: a repository's, folder's or file's name."""
    parsed = parse_name(source)
    if isinstance(parsed, HubName):
        return parsed.repo.rpartition("/")[2]
    if path.is_dir():
        return path.resolve().name
    stem, quant = files.stem(path.name), files.quant_of(path.name)
    cut = stem.upper().rfind(quant) if quant else -1
    return (stem[:cut].rstrip("-._") if cut > 0 else stem) or stem


def _target(target: Path, name: str, recipe: Recipe) -> Path:
    if str(target) == "-":
        raise typer.BadParameter("a model goes into a file or a folder, not to stdout")
    if target.is_dir():
        return target / f"{name}-{recipe.name.upper()}.gguf"
    if not target.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {target.parent} to write {target.name} to")
    return target


def _check_target(target: Path, source: Path, weights: Sequence[Path], force: bool) -> None:
    """A usage error for a target that is there and not to be replaced, or would change the source.

    `weights` are the files that the model is read from; all files of a folder but GGUF files belong to it.
    """
    is_gguf = target.suffix.lower() == ".gguf"
    if source.is_dir() and not is_gguf and source.resolve() in target.resolve().parents:
        raise typer.BadParameter(
            f"{target} is in the source's folder, where only a .gguf file may be written"
        )
    if not target.exists():
        return
    kept = [*weights, *(_files(source) if source.is_dir() and not is_gguf else ())]
    if any(os.path.samefile(target, file) for file in kept):
        raise typer.BadParameter(f"{target} is a file of the source, which is never changed")
    if not force:
        raise typer.BadParameter(f"{target} is there already; --force replaces it")
    if not target.is_file():
        raise typer.BadParameter(f"{target} is no file to replace")


def _files(folder: Path) -> list[Path]:
    """All files in a folder and below it."""
    return [path for path in folder.rglob("*") if path.is_file()]


def _check_quantised(planned: Sequence[PlannedTensor], allowed: bool) -> None:
    """Tensors that are quantised already may stay as they are; they become something else only if asked."""
    from ....quant.recipes.recipes import find_recipe

    changed = [p for p in planned if not p.tensor.format.is_float and p.tensor.format is not p.format]
    held = Counter(p.tensor.format.name for p in changed)
    if held and not allowed:
        most = held.most_common(1)[0][0]
        same = f", --type {most.lower()} keeps it as it is" if find_recipe(most) else ""
        raise typer.BadParameter(
            f"the source is quantised already (mostly {most}): what that lost stays lost, and more will be; "
            f"--allow-requantize does it all the same{same}"
        )


def _with_recipe(model: Convertible, recipe: Recipe) -> tuple[dict[str, object], dict[str, int]]:
    """Metadata that says what was done, and the types of its values."""
    metadata = model.metadata | {"general.file_type": recipe.file_type, "general.quantization_version": 2}
    return metadata, {key: kind for key, kind in model.types.items() if key in model.metadata}


def remarks(planned: Sequence[PlannedTensor]) -> list[str]:
    """Lines about tensors that do not have the format that was asked for."""
    groups = Counter((p.note, p.format.name) for p in planned if p.note)
    lines = []
    for (note, form), n in groups.items():
        names = [p.name for p in planned if (p.note, p.format.name) == (note, form)]
        what = f"tensor {names[0]} is" if n == 1 else f"{n} tensors are"
        lines.append(f"{what} {form}: {note}")
    return lines


def summary(
    written: QuantizedFile, planned: Sequence[PlannedTensor], source_bytes: int, seconds: float
) -> str:
    """The closing line."""
    weights, seconds = Counter[str](), max(seconds, 1e-9)
    for each in planned:
        weights[each.format.name] += each.tensor.n_weights
    shares = ", ".join(
        f"{form} {100 * n / max(1, written.n_weights):.0f} %"
        for form, n in weights.most_common()
        if n * 200 >= written.n_weights
    )
    size = f"{human_bytes(written.n_bytes)}, {written.bits_per_weight:.2f} bits a weight ({shares})"
    return f"{size}; {seconds:.1f} s, {source_bytes / 1e6 / seconds:.0f} MB/s of source"
