"""The sampling flags of `run` and `chat` that few need; their names are llama.cpp's."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

from .options import flag
from .prompt import check_utf8

_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


@dataclass(frozen=True)
class SamplingOptions:
    """One field for each flag; None is the default of SamplingParams."""

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


def breakers(texts: list[str]) -> tuple[str, ...]:
    r"""Sequence breakers as they are typed: \n is a line's end, and "none" is none at all."""
    check_utf8("a sequence breaker", "".join(texts))
    return tuple(re.sub(r"\\([nt\\])", lambda m: _ESCAPES[m[1]], each) for each in texts if each != "none")


def biases(texts: list[str]) -> tuple[tuple[int | str, float], ...]:
    """Biases as they are typed, ID=X or TEXT=X; ValueError for something else."""
    check_utf8("a logit bias", "".join(texts))
    return tuple(bias(text) for text in texts)


def bias(text: str) -> tuple[int | str, float]:
    """One bias, ID=X or TEXT=X."""
    token, _, amount = text.rpartition("=")
    try:
        number = float(amount)
    except ValueError:
        number = math.nan
    if not token or math.isnan(number):
        raise ValueError(f"logit_bias must be ID=X or TEXT=X with a number X, not {text!r:.60}")
    return (int(token) if token.isascii() and token.isdigit() else token), number
