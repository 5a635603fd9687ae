"""The plan of `llm quantize`: the format of every tensor, and the encoder that makes their blocks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..console import terminal

if TYPE_CHECKING:
    from ...quant.block import BlockFormat
    from ...quant.recipes.quantize import Encoder
    from ...quant.recipes.recipes import PlannedTensor, Recipe
    from ...runtime.calibration.encoder import CalibratedEncoder
    from ...runtime.model.convert import Convertible
    from .options import QuantizeOptions

DEFAULT_TEXT = "default"  # of --calibration


def planned_tensors(
    options: QuantizeOptions,
    recipe: Recipe,
    formats: list[tuple[str, BlockFormat]],
    model: Convertible,
    path: Path,
) -> tuple[list[PlannedTensor], Encoder]:
    """The format of every tensor, and the encoder that makes their blocks.

    With a calibration text, int4 spends its budget of bits by what rounding each matrix costs.
    """
    from ...quant.recipes.quantize import check_plan, uncalibrated_encoder
    from ...quant.recipes.recipes import plan

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
    from ...quant.recipes.bit_allocation import allocate_bits

    n_bytes = sum(each.record.n_bytes for each in planned)
    if bits is not None:
        n_bytes = int(bits / 8 * sum(each.tensor.n_weights for each in planned))
    try:
        return allocate_bits(planned, n_bytes, sensitivity)
    except ValueError as problem:
        raise typer.BadParameter(f"--bits is too small for this model: {problem}") from None


def _sensitivity(calibrated: CalibratedEncoder) -> dict[str, float]:
    from ..console.progress import StatusLine

    with StatusLine() as line:
        return calibrated.sensitivity(
            lambda done, of: line.show(f"measuring what matrices lose by rounding: {done} of {of} kinds")
        )


def _calibrated(path: Path, text: str, threads: int | None, zero_nonfinite: bool) -> CalibratedEncoder:
    from ...runtime.calibration.encoder import CalibratedEncoder, TextTooShort, calibration_windows
    from ...runtime.model.source import open_source
    from ...tokenizer import TokenizerError
    from ..console.bounded_io import TooLong

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
    from ...runtime.calibration.encoder import default_text
    from ..console.bounded_io import read_file
    from ..eval.text import LONGEST_TEXT

    if named == DEFAULT_TEXT and not Path(named).exists():
        return default_text()
    return read_file(Path(named), LONGEST_TEXT).decode("utf-8", errors="replace")


def _check_quantised(planned: Sequence[PlannedTensor], allowed: bool) -> None:
    """Tensors that are quantised already may stay as they are; they become something else only if asked."""
    from ...quant.recipes.recipes import find_recipe

    changed = [p for p in planned if not p.tensor.format.is_float and p.tensor.format is not p.format]
    held = Counter(p.tensor.format.name for p in changed)
    if held and not allowed:
        most = held.most_common(1)[0][0]
        same = f", --type {most.lower()} keeps it as it is" if find_recipe(most) else ""
        raise typer.BadParameter(
            f"the source is quantised already (mostly {most}): what that lost stays lost, and more will be; "
            f"--allow-requantize does it all the same{same}"
        )
