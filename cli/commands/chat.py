"""`llm chat`: a conversation, typed line by line, or one answer to piped text."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from ..chat.session import Session, converse
from ..console import terminal
from ..console.options import TextOrJson, flag, with_options
from ..generation.options import GenerationOptions, check_texts
from ..generation.prompt import read_files, read_prompt
from ..settings.model import Model_, chosen_model
from .run import answer, refuse_system_of_raw


@with_options
def chat(
    options: GenerationOptions,
    named: Model_ = None,
    no_stdin: Annotated[bool, flag("--no-stdin", help="Do not read stdin, even if it is a pipe.")] = False,
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

        chat_with_server(ServerClient(connect, api_key), options, named, no_stdin)
        return
    params = options.sampling()
    if not terminal.is_terminal(sys.stdin):
        if no_stdin:
            raise typer.BadParameter(
                "stdin is no terminal, and --no-stdin forbids to read it, so there is nothing to answer; "
                "llm run takes a prompt as an argument"
            )
        refuse_system_of_raw(options)
        text = read_prompt([], no_stdin, options.file or [])
        model = chosen_model(named)
        with closing(options.load(model)) as loaded:
            check_texts(loaded, params)
            answer(loaded, model, text, options, params)
        return
    if options.output is TextOrJson.json:
        raise typer.BadParameter("-o json is for one answer: pipe the prompt, or use llm run")
    if "-" in (options.file or []):
        raise typer.BadParameter("-f - reads stdin, which is the terminal of this chat")
    files = read_files(options.file or [])
    model = chosen_model(named)
    with closing(options.load(model)) as loaded:
        check_texts(loaded, params)
        session = Session(loaded, model, options, params, files)
        terminal.remark(
            f"{Path(model).name}, context {loaded.context} tokens. /help lists commands, Ctrl-D leaves."
        )
        if files:
            terminal.remark("(the files go in front of the first message)")
        if session.conversation.raw and not options.raw:
            terminal.note("This model has no chat template: it continues text, it does not answer it.")
        converse(session)
