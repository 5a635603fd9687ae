"""The flags of two models, the small one of which is asked first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..console.options import flag

if TYPE_CHECKING:
    from ...runtime.model.model import Model
    from ...runtime.routing.policy import Policy


@dataclass(frozen=True)
class RouteOptions:
    """One field for each flag."""

    route: Annotated[
        str | None,
        flag(
            "--route",
            metavar="SMALL,LARGE",
            help="Two models: the small one answers, and the large one again where that was unsure.",
        ),
    ] = None
    route_threshold: Annotated[
        float | None,
        flag(
            "--route-threshold",
            metavar="X",
            help="Confidence below which the large model answers; default: the calibration's, else 0.5.",
        ),
    ] = None
    route_calibration: Annotated[
        Path | None,
        flag(
            "--route-calibration",
            metavar="FILE",
            help="What makes probabilities of confidences: llm eval --route writes it.",
        ),
    ] = None

    @cached_property
    def route_names(self) -> tuple[str, str] | None:
        """The small and the large model; None without --route. A usage error for other than two names."""
        if self.route is None:
            for name in ("route_threshold", "route_calibration"):
                if getattr(self, name) is not None:
                    raise typer.BadParameter(f"--{name.replace('_', '-')} is for --route SMALL,LARGE")
            return None
        return two_names(self.route)

    @property
    def route_policy(self) -> Policy:
        """When the small model's answer is kept. A usage error for a threshold that is none; DamagedFile and
        OSError for the calibration."""
        from ...runtime.routing.confidence import Calibration
        from ...runtime.routing.policy import DEFAULT_THRESHOLD, Policy

        made = None if self.route_calibration is None else Calibration.load(self.route_calibration)
        default = DEFAULT_THRESHOLD if made is None else made.threshold
        threshold = default if self.route_threshold is None else self.route_threshold
        try:
            return Policy(threshold, made)
        except ValueError as problem:
            raise typer.BadParameter(str(problem), param_hint="--route-threshold") from None


def two_names(route: str) -> tuple[str, str]:
    """The models of `--route SMALL,LARGE`. A usage error for other than two."""
    names = [name.strip() for name in route.split(",")]
    if len(names) != 2 or not all(names):
        raise typer.BadParameter("--route takes two models: SMALL,LARGE", param_hint="--route")
    return names[0], names[1]


def load_routed(load: Callable[[str], Model], names: tuple[str, str], policy: Policy) -> Model:
    """The small model, loaded by `load`, with the large one behind it. A usage error for a calibration of
    another model."""
    from ...runtime.routing.router import Router

    small = load(names[0])
    try:
        large = load(names[1])
        try:
            small.router = Router(small, large, policy)
        except ValueError as problem:
            large.close()
            raise typer.BadParameter(str(problem), param_hint="--route-calibration") from None
    except BaseException:
        small.close()
        raise
    return small
