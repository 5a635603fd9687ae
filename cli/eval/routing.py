"""`llm eval --route`: two models on questions with known answers, and what each threshold gives."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...runtime.hub.resolve import resolve
from ..console import terminal
from ..console.progress import Progress, StatusLine
from ..console.safe_text import as_json
from ..console.table import markdown_table, table
from ..console.wording import count
from ..generation.options import load_quietly

if TYPE_CHECKING:
    from ...runtime.routing.confidence import Calibration
    from ...runtime.routing.labelled import Match, Question
    from ...runtime.routing.trial import Attempt, Outcome

MOST_QUESTIONS = 100_000
_HEADER = ("threshold", "to the large model", "right", "seconds", "cost")


@dataclass(frozen=True)
class RoutePlan:
    """What `llm eval --route` is to measure. `save`: where the calibration goes; None: nowhere."""

    small: str
    large: str
    file: str
    max_tokens: int
    match: Match
    device: str
    threads: int | None
    kv_type: str
    context: int | None
    save: Path | None


@dataclass(frozen=True)
class RouteReport:
    """What was measured; `outcomes` by calibrated confidence, `plain` by the probabilities of the tokens."""

    plan: RoutePlan
    questions: int
    calibration: Calibration
    outcomes: Sequence[Outcome]
    plain: Sequence[Outcome]


def measure_route(plan: RoutePlan) -> RouteReport:
    """Ask both models all questions, one after another. A usage error for a file without questions."""
    from ...runtime.engine.sampling.params import SamplingParams
    from ...runtime.model.options import LoadOptions
    from ...runtime.routing.policy import Policy
    from ...runtime.routing.trial import attempts, calibrated
    from ...runtime.routing.trial import table as outcomes_of

    questions = read_questions(plan.file)
    options = LoadOptions(
        plan.device, plan.context, plan.threads, plan.kv_type, parallel=1, deterministic=True
    )
    paths = [(name, resolve(name, Progress)) for name in (plan.small, plan.large)]
    params = SamplingParams(temperature=0.0, max_tokens=plan.max_tokens)
    small_name, large_name = ((path, name, options) for name, path in paths)
    with closing(load_quietly(*small_name)) as small, closing(load_quietly(*large_name)) as large:
        line = StatusLine()

        def report(n: int) -> None:
            line.show(f"question {n} of {len(questions)}")

        try:
            tried: list[Attempt] = attempts(small, large, questions, params, plan.match, report)
        finally:
            line.erase()
        try:
            made = calibrated(small, tried)
        except ValueError:
            raise typer.BadParameter(f"{plan.small} answered no question with anything") from None
    if plan.save is not None:
        made.save(plan.save)
    return RouteReport(
        plan, len(questions), made, outcomes_of(tried, Policy(calibration=made)), outcomes_of(tried, Policy())
    )


def read_questions(name: str) -> list[Question]:
    """The questions of a file with one a row: JSON lines, CSV or Parquet. A usage error for none, and for a
    row that is no question."""
    from ...runtime.batch.job import open_input
    from ...runtime.batch.rows import format_of, read_rows
    from ...runtime.routing.labelled import BadQuestion, Question

    questions = []
    file, _ = open_input(name)
    with file:
        for row in read_rows(file, format_of(name)):
            try:
                if row.error is not None:
                    raise BadQuestion(row.error)
                questions.append(Question.of(row.fields))
            except BadQuestion as problem:
                raise typer.BadParameter(f"{name}, row {row.number} {problem}", param_hint="--file") from None
            if len(questions) > MOST_QUESTIONS:
                raise typer.BadParameter(f"{name} has over {MOST_QUESTIONS} questions", param_hint="--file")
    if not questions:
        raise typer.BadParameter(f"{name} has no questions", param_hint="--file")
    return questions


def as_json_object(report: RouteReport) -> str:
    """All of it, for programs."""
    plan = replace(report.plan, save=None)
    told = {name: value for name, value in asdict(plan).items() if name != "save"}
    return (
        as_json(
            {
                **told,
                "questions": report.questions,
                "calibration": asdict(report.calibration),
                "calibrated": [asdict(outcome) for outcome in report.outcomes],
                "uncalibrated": [asdict(outcome) for outcome in report.plain],
            },
            indent=1,
        )
        + "\n"
    )


def as_text(report: RouteReport, markdown: bool) -> str:
    """A table for the calibrated confidence, one for the plain one, and what to do with them."""
    plan, made = report.plan, report.calibration
    parts = []
    for title, outcomes in (
        ("calibrated confidence", report.outcomes),
        ("confidence without a calibration: the geometric mean of the tokens' probabilities", report.plain),
    ):
        rows = [_row(outcome) for outcome in outcomes]
        drawn = markdown_table(_HEADER, rows) if markdown else table(_HEADER, rows, right=range(5))
        parts.append(f"{title}\n\n{drawn}")
    text = "\n".join(parts)
    text += (
        f"\n{count(report.questions, 'question')}; the cost is in seconds, of what {plan.large} alone takes. "
        f"At the last threshold {plan.small} is not asked.\n"
    )
    if plan.save is not None:
        text += (
            f"{plan.save}: the calibration, with the threshold {made.threshold:.4g}, the cheapest of those "
            "with the most right answers (--route-calibration)\n"
        )
    return text


def _row(outcome: Outcome) -> list[str]:
    return [
        f"{outcome.threshold:.6g}",
        f"{outcome.escalated:.1%}",
        f"{outcome.right:.1%}",
        f"{outcome.seconds:.1f}",
        f"{outcome.cost:.0%}",
    ]


def write_route(report: RouteReport, form: str) -> None:
    """Write a report to stdout: "json", "md" or "table"."""
    terminal.write(as_json_object(report) if form == "json" else as_text(report, form == "md"))
