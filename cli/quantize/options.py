"""The flags of `llm quantize`, and the types and formats that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ..console.options import flag

if TYPE_CHECKING:
    from ...quant.block import BlockFormat
    from ...quant.recipes.recipes import Recipe


def _type_names(incomplete: str) -> list[str]:
    """The types that begin with `incomplete`, for completion in a shell."""
    from ...quant.recipes.recipes import ALIASES, RECIPES

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


def named_recipe(kind: str) -> Recipe:
    """The recipe of `--type`. Raises BadParameter."""
    from ...quant.recipes.recipes import ALIASES, RECIPES, find_recipe

    recipe = find_recipe(kind)
    if recipe is None:
        raise typer.BadParameter(f"no type is called {kind!r}; there are {', '.join([*RECIPES, *ALIASES])}")
    return recipe


def named_format(text: str) -> tuple[str, BlockFormat]:
    """The pattern and the format of a `--tensor-type`. Raises BadParameter."""
    import re

    from ...quant.formats import FORMATS

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
