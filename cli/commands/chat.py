"""`llm chat`: a conversation, typed line by line, or one answer to piped text."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..chat.session import Session, converse
from ..console import terminal
from ..console.options import TextOrJson, flag, with_options
from ..generation.options import GenerationOptions, check_texts
from ..generation.prompt import read_files, read_prompt
from ..keeping.flags import AUTOSAVE_SIZE, AutosaveSize, NoAutosave, Resume, SessionFile
from ..keeping.keeper import Keeper, autosave_keeper, open_keeper
from ..run.in_session import answer_in_session
from ..settings.model import Model_, chosen_model, named_by_user
from .run import answer, refuse_system_of_raw

WITHOUT = ("cache", "cache_size", "route", "route_threshold", "route_calibration")  # flags of `run`


@partial(with_options, without=WITHOUT)
def chat(
    options: GenerationOptions,
    ctx: typer.Context,
    named: Model_ = None,
    no_stdin: Annotated[bool, flag("--no-stdin", help="Do not read stdin, even if it is a pipe.")] = False,
    session: SessionFile = None,
    resume: Resume = False,
    no_autosave: NoAutosave = False,
    autosave_size: AutosaveSize = AUTOSAVE_SIZE,
    connect: Annotated[
        str | None, flag("--connect", metavar="URL", help="Chat with a model of a server (llm serve).")
    ] = None,
    api_key: Annotated[str | None, flag("--api-key", metavar="KEY", help="The server's key.")] = None,
) -> None:
    """Hold a conversation.

    With text piped into it, it answers once and ends.
    """
    if connect is not None:
        from ..connect.chat import chat_with_server
        from ..connect.client import ServerClient

        asked = named if named_by_user(ctx, "named") else None  # a default is one of this machine
        chat_with_server(ServerClient(connect, api_key), options, asked, no_stdin)
        return
    params = options.sampling()
    options.response_format  # noqa: B018 - what is wrong with it is said before a model is loaded
    typed = terminal.is_terminal(sys.stdin)
    _check_streams(options, typed, no_stdin)
    keeper = open_keeper(session, resume, not no_autosave, autosave_size << 20)
    if keeper is not None:
        system = options.system_text if named_by_user(ctx, "system") else ""
        keeper.check(system, options.raw)
        named = keeper.model(named, named_by_user(ctx, "named"))
    if not typed:
        refuse_system_of_raw(options)
        text = read_prompt([], no_stdin, options.file or [])
        model = chosen_model(named)
        with closing(options.load(model)) as loaded:
            check_texts(loaded, params)
            if keeper is None:
                answer(loaded, model, text, options, params)
            else:
                answer_in_session(loaded, model, text, options, params, keeper)
            options.keep_prompts(loaded)
        return
    files = read_files(options.file or [])
    if keeper is None:
        keeper = Keeper(None) if no_autosave else autosave_keeper(autosave_size << 20)
    model = chosen_model(named)
    with closing(options.load(model)) as loaded:
        check_texts(loaded, params)
        conversation = keeper.begin(loaded, model, options.system_text, options.raw, params.max_tokens)
        talk = Session(
            loaded,
            model,
            options,
            params,
            conversation,
            files,
            lambda conversation, ending: keeper.save(conversation, loaded, ending),
        )
        terminal.remark(
            f"{Path(model).name}, context {loaded.context} tokens. /help lists commands, Ctrl-D leaves."
        )
        if keeper.summary:
            terminal.remark(f"({keeper.summary})")
        if files:
            terminal.remark("(the files go in front of the first message)")
        if conversation.raw and not loaded.chat_template:
            terminal.note("This model has no chat template: it continues text, it does not answer it.")
        try:
            converse(talk)
        finally:
            talk.keep(ending=True)
            options.keep_prompts(loaded)


def _check_streams(options: GenerationOptions, typed: bool, no_stdin: bool) -> None:
    """A usage error for flags that do not go with a terminal, or with text that is piped in."""
    if not typed and no_stdin:
        raise typer.BadParameter(
            "stdin is no terminal, and --no-stdin forbids to read it, so there is nothing to answer; "
            "llm run takes a prompt as an argument"
        )
    if typed and options.output is TextOrJson.json:
        raise typer.BadParameter("-o json is for one answer: pipe the prompt, or use llm run")
    if typed and "-" in (options.file or []):
        raise typer.BadParameter("-f - reads stdin, which is the terminal of this chat")
