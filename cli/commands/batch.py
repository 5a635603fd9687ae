"""`llm batch`: a file of prompts."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..batch.answering import DEFAULT_WIDTH, answering, contexts_of
from ..console import terminal
from ..console.options import flag, with_options
from ..generation.input_files import text_or_file
from ..generation.options import GenerationOptions
from ..settings.model import Model_, chosen_model, named_by_user

if TYPE_CHECKING:
    from ...runtime.batch.requests import Asking

MOST_WIDTH, MOST_RETRIES = 1024, 10
WITHOUT = (  # flags of `run` that mean nothing here
    *("file", "no_wrap", "output", "stats", "hide_thinking", "thinking_budget", "no_schema_prompt"),
    *("prompt_cache", "prompt_cache_size", "tool", "yes", "mcp"),
)


@partial(with_options, without=WITHOUT)
def batch(
    options: GenerationOptions,
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="IN", help=".jsonl, .csv or .parquet; - is stdin.")],
    destination: Annotated[str, typer.Argument(metavar="OUT", help="The same kinds of file; - is stdout.")],
    model: Model_ = None,
    template: Annotated[
        str | None,
        flag(
            "--prompt-template",
            metavar="TEXT",
            help="The prompt, with {column} in it; @FILE takes it from a file.",
        ),
    ] = None,
    answer_column: Annotated[
        str, flag("--answer-column", metavar="NAME", help="The answer's column in OUT.")
    ] = "answer",
    ordered: Annotated[bool, flag("--ordered", help="Write answers in the order of the rows.")] = False,
    width: Annotated[
        int | None,
        flag(
            "--parallel",
            metavar="N",
            min=1,
            max=MOST_WIDTH,
            help=f"Answers at a time; default: {DEFAULT_WIDTH}.",
        ),
    ] = None,
    retries: Annotated[
        int,
        flag(
            "--retries", metavar="N", min=0, max=MOST_RETRIES, help="Attempts after an error that may pass."
        ),
    ] = 2,
    embed: Annotated[
        bool, flag("--embed", help="Write the vectors of the texts instead of answers.")
    ] = False,
    ray: Annotated[
        str | None,
        flag(
            "--ray", metavar="ADDRESS", help="Run on all machines of the Ray cluster there; auto: this one's."
        ),
    ] = None,
    force: Annotated[bool, flag("--force", help="Begin anew, and replace OUT.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", help="Only say what it would take.")] = False,
) -> None:
    """Answer a file of prompts.

    Rows are OpenAI's batch lines, have `messages` or a `prompt`, or what --prompt-template reads. A run that
    was cut off goes on when the same command is given again; rows that fail are in OUT.errors.jsonl.
    """
    from ...runtime.batch.ahead import RowsAhead
    from ...runtime.batch.job import open_job
    from ...runtime.batch.runner import Batch
    from ..batch.asking import asking
    from ..batch.progress import run_batch

    asked = asking(options, None if template is None else text_or_file(template), embed)
    name, width = options.route or chosen_model(model), width or DEFAULT_WIDTH
    _check_together(options, ctx, embed, dry_run, ray)
    if dry_run:
        _say_what_it_takes(options, name, source, asked, width)
        return
    with answering(options, name, width, ray, embed) as crew:
        settings = _settings(crew.digest, asked, answer_column, ordered)
        job = open_job(source, destination, settings, answer_column, force)
        running = Batch(
            RowsAhead(job.rows),
            asked,
            crew.execute,
            job.lines,
            job.output,
            crew.width,
            retries,
            ordered,
            known=job.known,
        )
        crew.begin(running)
        run_batch(running, job)


def _check_together(
    options: GenerationOptions, ctx: typer.Context, embed: bool, dry_run: bool, ray: str | None
) -> None:
    """A usage error for flags that exclude each other."""
    if options.route_names is not None and (embed or named_by_user(ctx, "model")):
        raise typer.BadParameter("--route names two models that write: -m and --embed do not go with it")
    if options.route is not None and dry_run:
        raise typer.BadParameter("--dry-run estimates one model, not the two of --route")
    for_one = {"--dry-run": dry_run, "--cache": options.cache, "--route": options.route}
    for name, value in for_one.items():
        if value and ray is not None:
            raise typer.BadParameter(f"{name} is for one machine, and --ray for many")


def _settings(digest: str, asked: Asking, answer_column: str, ordered: bool) -> dict[str, Any]:
    """What decides the output: a run goes on only with the same, and an error names what is another."""
    return {
        "model": digest,
        "prompts": [asked.template.text if asked.template else None, asked.raw, asked.embed, asked.system],
        "parameters": dict(asked.parameters),
        "answer column": answer_column,
        "order": ordered,
    }


def _say_what_it_takes(options: GenerationOptions, name: str, source: str, asked: Asking, width: int) -> None:
    from ...quant.units import human_bytes
    from ...runtime.batch.estimate import estimate
    from ...runtime.batch.job import open_input
    from ...runtime.batch.rows import format_of, read_rows
    from ..batch.progress import human_seconds

    with closing(options.load(name, parallel=width, contexts=contexts_of(width))) as loaded:
        file, _ = open_input(source)
        found = estimate(loaded, read_rows(file, format_of(source)), asked, width)
        facts: list[tuple[str, Any]] = [
            (
                "rows",
                f"{found.rows}, {found.bad} of them are no requests ({found.first_bad})"
                if found.bad
                else found.rows,
            ),
            ("tokens of prompts", f"{found.prompt_tokens}, {found.longest} in the longest"),
            ("tokens of answers", f"{found.answer_tokens} at most"),
            (
                "speed",
                f"{found.prefill:.0f} tokens/s of prompts, {found.decode:.0f} of {width} answers at a time",
            ),
            ("time", f"{human_seconds(found.seconds)} at most"),
            (
                "memory",
                f"{human_bytes(loaded.n_bytes)} of weights, and a cache for {loaded.context} tokens each",
            ),
        ]
        if found.unlimited:
            facts[2] = ("tokens of answers", f"{found.unlimited} rows have no limit (-n)")
            facts[4] = ("time", f"{human_seconds(found.seconds)}, and what answers without a limit take")
    for label, fact in facts:
        terminal.write(f"{label}: {fact}\n")
