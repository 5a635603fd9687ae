"""`llm explain`: what happens between a prompt and its answer."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ...quant.units import human_bytes
from ..console import terminal
from ..console.options import TextOrJson, flag, with_options
from ..console.safe_text import as_json
from ..explain.views import VIEWS, chosen_views
from ..generation.options import GenerationOptions, check_texts
from ..generation.prompt import read_prompt
from ..settings.model import Model_, chosen_model

DEFAULT_TOKENS = 24
WITHOUT = (  # flags of `run` that mean nothing here
    *("no_wrap", "stats", "hide_thinking", "thinking_budget", "no_schema_prompt", "speculate", "draft"),
    *("prompt_cache", "prompt_cache_size", "tool", "tools", "tool_choice", "yes", "mcp", "deterministic"),
)


@partial(with_options, without=WITHOUT)
def explain(
    options: GenerationOptions,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="The prompt; - is stdin.", show_default=False),
    ] = None,
    model: Model_ = None,
    view: Annotated[
        list[str] | None,
        flag(
            "--view",
            metavar="NAME",
            help=f"What to show: {', '.join(VIEWS)} or all; several with commas; default: tokens and "
            "probabilities.",
        ),
    ] = None,
    top: Annotated[
        int, flag("--top", metavar="N", min=1, max=1000, help="Tokens shown of each distribution.")
    ] = 8,
    layer: Annotated[
        int | None, flag("--layer", metavar="N", min=0, help="Layer of the attention map, from 0.")
    ] = None,
    head: Annotated[
        int | None, flag("--head", metavar="N", min=0, help="Head of the attention map, from 0.")
    ] = None,
    position: Annotated[
        int,
        flag("--position", metavar="N", min=0, help="Token of the answer whose sampling is shown, from 0."),
    ] = 0,
    beams: Annotated[int, flag("--beams", metavar="K", min=1, max=16, help="Beams of the view beams.")] = 3,
    html: Annotated[
        Path | None, flag("--html", metavar="FILE", help="Write a page with all views, in one file, as well.")
    ] = None,
    no_stdin: Annotated[bool, flag("--no-stdin", help="Do not read stdin, even if it is a pipe.")] = False,
) -> None:
    """Show what happens between a prompt and its answer: tokens, probabilities, attention, layers, time.

    Everything shown is computed by the model itself. The answer has 24 tokens at most, or -n.
    """
    views = chosen_views(view)
    text = read_prompt(prompt or [], no_stdin, options.file or [])
    from .run import refuse_system_of_raw, requested

    refuse_system_of_raw(options)
    params = options.sampling()
    if options.max_tokens is None:
        params = replace(params, max_tokens=DEFAULT_TOKENS)
    name = chosen_model(model)
    from ..explain.page import Page
    from ..explain.saved import page_data, write_page
    from ..explain.subject import Choices, Subject
    from ..explain.views import draw, facts_of

    with closing(options.load(name, beams if "beams" in views or html else 1)) as loaded:
        check_texts(loaded, params)
        ids = list(requested(loaded, text, options, params).ids or ())
        most = DEFAULT_TOKENS if params.max_tokens is None else params.max_tokens
        choices = Choices(top, layer, head, position, beams, most)
        subject = Subject(loaded, name, text, ids, params, choices, views)
        with terminal.status("computing …"):
            facts = facts_of(subject, views)
            saved = page_data(subject) if html else None
    if html and saved is not None:
        terminal.remark(f"{html}: a page of {human_bytes(write_page(html, saved))}")
    if options.output is TextOrJson.json:
        terminal.write(as_json({"model": name, "text": text, **facts}) + "\n")
        return
    page = Page()
    draw(page, facts)
    page.write()
