"""`llm eval`: how well models predict a text, and how far they are from a baseline."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..console import terminal
from ..console.completion import model_names
from ..console.options import DEFAULT_MODEL, THREADS_HELP, KvType, flag, with_options
from ..generation.adapters import AdapterOptions
from ..settings.model import ModelsOption, named_by_user

if TYPE_CHECKING:
    from ..eval.measure import Plan, Subject
    from ..eval.text import EvalText


class Format(StrEnum):
    auto = "auto"
    md = "md"
    json = "json"


class AnswerMatch(StrEnum):
    contains = "contains"
    exact = "exact"


class EvalDevice(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    reference = "reference"


@dataclass(frozen=True, kw_only=True)
class EvalOptions(AdapterOptions):
    """The flags of `llm eval`, those of adapters among them."""

    file: Annotated[str, flag("--file", metavar="TEXT", help="Text file, also packed with gzip; -: stdin.")]
    context: Annotated[
        int, flag("-c", "--context", metavar="N", min=4, max=1 << 20, help="Tokens a window.")
    ] = 512
    limit: Annotated[
        int | None, flag("--limit", metavar="TOKENS", min=1, help="Tokens of the text at most; default: all.")
    ] = None
    baseline: Annotated[
        str | None,
        flag("--baseline", metavar="MODEL|FILE", help="Compare with this model, or with saved logits."),
    ] = None
    baseline_device: Annotated[
        EvalDevice | None,
        flag("--baseline-device", metavar="DEVICE", help="Where to run the baseline; default: as --device."),
    ] = None
    save_logits: Annotated[
        Path | None, flag("--save-logits", metavar="FILE", help="Keep the model's logits for --baseline.")
    ] = None
    plot: Annotated[
        Path | None, flag("--plot", metavar="FILE.png|svg", help="Draw quality against size.")
    ] = None
    route: Annotated[
        str | None,
        flag(
            "--route",
            metavar="SMALL,LARGE",
            help="Two models on questions with known answers: what a threshold of --route gives.",
        ),
    ] = None
    max_tokens: Annotated[
        int, flag("-n", "--max-tokens", metavar="N", min=1, help="With --route: tokens of an answer at most.")
    ] = 64
    match: Annotated[
        AnswerMatch,
        flag("--match", help="With --route: a right answer has the known one in it, or is it."),
    ] = AnswerMatch.contains
    save_calibration: Annotated[
        Path | None,
        flag("--save-calibration", metavar="FILE", help="With --route: keep the calibration."),
    ] = None
    threads: Annotated[int | None, flag("--threads", metavar="N", min=1, help=THREADS_HELP)] = None
    kv_type: Annotated[
        KvType, flag("--kv-type", help="Number format of the KV cache; auto: as the other commands choose.")
    ] = KvType.auto
    device: Annotated[EvalDevice, flag("--device", help="Where to run the models.")] = EvalDevice.auto
    output: Annotated[
        Format, flag("-o", "--output", help="Format of the results; auto: a table, in markdown if piped.")
    ] = Format.auto


@with_options
def evaluate(
    options: EvalOptions,
    ctx: typer.Context,
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL…", help="More models.", show_default=False, autocompletion=model_names),
    ] = None,
    models: ModelsOption = None,
) -> None:
    """Measure perplexity, and divergence from a baseline.

    The text is cut into windows of -c tokens, as llama-perplexity does it; the second half of each is
    scored, and all of it in a second number. With --baseline: KL divergence, the change in the probability
    of the right token (RMS), and how often the likeliest token is the same. Adapters belong to the models,
    not to the baseline.
    """
    if more and not named_by_user(ctx, "models"):
        models = None  # a default model is not one more
    if options.route is not None:
        _route(options, ctx, bool(models and named_by_user(ctx, "models")) or bool(more))
        return
    if options.save_calibration is not None:
        raise typer.BadParameter("there is no --route to calibrate", param_hint="--save-calibration")
    names = [*(models or []), *(more or [])] or [DEFAULT_MODEL]
    _check(options, names)
    from ..eval.measure import measure
    from ..eval.text import read_text

    text = read_text(options.file)
    report = measure(*_planned(options, names, text))
    if options.plot:
        from ..eval.plot import plot

        plot(report, options.plot)
    from ..eval.report import as_json_object, as_markdown, as_table

    if options.output is Format.json:
        terminal.write(as_json_object(report))
    elif options.output is Format.auto and terminal.is_terminal(sys.stdout):
        terminal.write(as_table(report, terminal.width()))
    else:
        terminal.write(as_markdown(report))


def _route(options: EvalOptions, ctx: typer.Context, other_models: bool) -> None:
    """Measure the two models of --route. A usage error for what does not go with it."""
    from ..eval.routing import RoutePlan, measure_route, write_route
    from ..generation.routing import two_names

    others = (options.baseline, options.save_logits, options.plot, options.limit)
    if other_models or any(other is not None for other in others):
        raise typer.BadParameter(
            "--route names both models, and goes without --baseline, --save-logits, --plot and --limit"
        )
    small, large = two_names(options.route or "")
    save = options.save_calibration
    if save is not None and (save.is_dir() or not save.absolute().parent.is_dir()):
        raise typer.BadParameter(f"{save} is no place for a file", param_hint="--save-calibration")
    plan = RoutePlan(
        small,
        large,
        options.file,
        options.max_tokens,
        options.match.value,
        options.device.value,
        options.threads,
        options.kv_type.value,
        options.context if named_by_user(ctx, "context") else None,
        save,
    )
    report = measure_route(plan)
    on_terminal = options.output is Format.auto and terminal.is_terminal(sys.stdout)
    write_route(report, "json" if options.output is Format.json else "table" if on_terminal else "md")


def _check(options: EvalOptions, names: list[str]) -> None:
    """A usage error for flags that contradict each other, before anything is read or loaded."""
    if options.limit is not None and options.limit < options.context:
        raise typer.BadParameter(
            f"{options.limit} tokens do not fill a window of {options.context}", param_hint="--limit"
        )
    if options.baseline_device and not options.baseline:
        raise typer.BadParameter("there is no --baseline to run", param_hint="--baseline-device")
    if options.save_logits:
        _check_save(options.save_logits, names)
    if options.plot:
        from ..eval.plot import check_plot

        check_plot(options.plot)


def _planned(
    options: EvalOptions, names: list[str], text: EvalText
) -> tuple[Plan, list[Subject], Subject | Path | None]:
    """What to measure: all models are found before the first is measured."""
    from ...runtime.evaluation.saved_logits import is_saved_logits
    from ..eval.measure import Plan, Subject

    subjects = [Subject.find(name) for name in names]
    base: Subject | Path | None = None
    if options.baseline:
        saved = Path(options.baseline)
        base = saved if is_saved_logits(saved) else Subject.find(options.baseline)
    plan = Plan(
        text=text,
        context=options.context,
        limit=options.limit,
        device=options.device.value,
        baseline_device=(options.baseline_device or options.device).value,
        threads=options.threads,
        kv_type=options.kv_type.value,
        save=options.save_logits,
        adapters=options.adapters,
    )
    return plan, subjects, base


def _check_save(path: Path, names: list[str]) -> None:
    """A usage error if the logits cannot go there, or would replace another kind of file."""
    from ...runtime.evaluation.saved_logits import is_saved_logits

    if len(names) > 1:
        raise typer.BadParameter("the logits of one model go into a file", param_hint="--save-logits")
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}", param_hint="--save-logits")
    if path.is_dir() or (path.exists() and not is_saved_logits(path)):
        raise typer.BadParameter(f"{path} is there and holds something else", param_hint="--save-logits")
