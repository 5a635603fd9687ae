"""`llm run`: one answer."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ...runtime.hub.catalogue import BY_NAME
from ..console import terminal
from ..console.options import flag, with_options
from ..generation.options import GenerationOptions, check_texts
from ..generation.prompt import read_prompt, read_stdin, stdin_is_meant
from ..generation.reply import exit_code
from ..keeping.flags import Resume, SessionFile
from ..run.answers import MOST_ANSWERS, write_answers
from ..run.beams import MOST_BEAMS, BeamFlags, EarlyStopping, write_beams
from ..run.fill_in import fill_in
from ..run.one_answer import NO_TEMPLATE, write_reply
from ..settings.model import Model_, chosen_model, named_by_user

if TYPE_CHECKING:
    from ...runtime.answers.request import GenerationRequest
    from ...runtime.engine.sampling.params import SamplingParams
    from ...runtime.model.model import Model


@with_options
def run(
    options: GenerationOptions,
    ctx: typer.Context,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="The prompt; - is stdin.", show_default=False),
    ] = None,
    model: Model_ = None,
    n_answers: Annotated[
        int,
        flag("-N", "--answers", metavar="K", min=1, max=MOST_ANSWERS, help="Answers to write; default: 1."),
    ] = 1,
    logprobs: Annotated[
        int | None,
        flag("--logprobs", metavar="N", min=0, help="Log probabilities, also of N in a token's place."),
    ] = None,
    beams: Annotated[
        int | None,
        flag("--beams", metavar="K", min=1, max=MOST_BEAMS, help="Beam search: keep the K likeliest."),
    ] = None,
    length_penalty: Annotated[
        float,
        flag("--length-penalty", metavar="X", help="Of beams: above 0, longer answers gain; default: 1."),
    ] = 1.0,
    early_stopping: Annotated[
        EarlyStopping, flag("--early-stopping", help="Whether a beam search stops at K whole answers.")
    ] = EarlyStopping.false,
    fim: Annotated[
        tuple[str, str] | None,
        flag("--fim", metavar="PREFIX SUFFIX", help="Write what is between two texts; @FILE takes a file."),
    ] = None,
    no_stdin: Annotated[bool, flag("--no-stdin", help="Do not read stdin, even if it is a pipe.")] = False,
    session: SessionFile = None,
    resume: Resume = False,
) -> None:
    """Answer one prompt.

    Piped text joins the prompt after a blank line: `git diff | llm run "Review this:"`.
    """
    words, files, named = prompt or [], options.file or [], named_by_user(ctx, "model")
    if options.response_format is not None and beams:
        raise typer.BadParameter("a beam search (--beams) cannot keep its answers to a form")
    _check_routed(options, ctx, n_answers, logprobs, beams, fim, session, resume)
    if fim is not None:
        fill_in(fim, options, chosen_model(model), bool(words or files))
        return
    if words and words[0] in BY_NAME and not named and options.route is None:
        by_word, text = _model_and_text(words, no_stdin, files)
        model, named = by_word or model, by_word is not None
    else:
        text = read_prompt(words, no_stdin, files)
    refuse_system_of_raw(options)
    params = replace(options.sampling(), logprobs=logprobs)
    flags = BeamFlags(beams, length_penalty, early_stopping, n_answers) if beams else None
    search = flags.params(params) if flags else None
    keeper = None
    if session is not None or resume:
        from ..keeping.keeper import open_keeper

        keeper = open_keeper(session, resume)
    if keeper is not None:
        if n_answers > 1 or logprobs is not None or beams:
            raise typer.BadParameter("a session goes on with one answer, without -N, --logprobs and --beams")
        keeper.check(options.system_text if named_by_user(ctx, "system") else "", options.raw)
        model = keeper.model(model, named)
    model = options.route or chosen_model(model)
    with closing(options.load(model, beams or 1)) as loaded:
        check_texts(loaded, params)
        if keeper is not None:
            from ..run.in_session import answer_in_session

            answer_in_session(loaded, model, text, options, params, keeper)
        elif search is not None:
            ids = _encode(loaded, text, options, params)
            write_beams(loaded, model, ids, options, params, search, n_answers)
        elif n_answers > 1 or logprobs is not None:
            write_answers(loaded, model, _encode(loaded, text, options, params), options, params, n_answers)
        else:
            answer(loaded, model, text, options, params)
        options.keep_prompts(loaded)


def _check_routed(options: GenerationOptions, ctx: typer.Context, n_answers: int, *others: object) -> None:
    """A usage error for flags that do not go with two models, if there are two."""
    if options.route_names is None:
        return
    if named_by_user(ctx, "model"):
        raise typer.BadParameter("--route names both models, so that -m has no place beside it")
    if n_answers > 1 or any(other is not None and other is not False for other in others):
        raise typer.BadParameter(
            "--route is for one answer, without -N, --logprobs, --beams, --fim and sessions"
        )


def _model_and_text(words: list[str], no_stdin: bool, files: list[str]) -> tuple[str | None, str]:
    """The model that the first word of a prompt names, and the prompt without it; None if it is the prompt.

    Only more of a prompt, in words, files or piped, makes a model's name the model. Alone on a terminal it is
    a usage error, since nobody asks a model for the name of one.
    """
    name, *rest = words
    if rest or files:
        text = read_prompt(rest, no_stdin, files)
    elif terminal.is_terminal(sys.stdin):
        raise typer.BadParameter(
            f"{name} is the name of a model, and there is no prompt: llm run -m {name} PROMPT asks it, "
            f"llm chat -m {name} talks to it"
        )
    else:
        text = read_stdin() if not no_stdin and stdin_is_meant(beside_text=True) else ""
    if not text.strip():
        return None, name
    terminal.remark(f"taking {name} as the model; -m {name} says so without this line")
    return name, text


def refuse_system_of_raw(options: GenerationOptions) -> None:
    """A usage error for a system prompt that would be lost."""
    if options.raw and options.system_text:
        raise typer.BadParameter("--raw has no place for a system prompt (-s)")


def answer(loaded: Model, name: str, text: str, options: GenerationOptions, params: SamplingParams) -> None:
    """Write one reply to `text` as the options say; ends the command with 130 if Ctrl-C cut it,
    and with 6 if it does not have the form that it must have."""
    reply = write_reply(loaded, name, requested(loaded, text, options, params), options)
    if code := exit_code(reply):
        raise typer.Exit(code)


def requested(
    loaded: Model, text: str, options: GenerationOptions, params: SamplingParams
) -> GenerationRequest:
    """What the options ask of the model, with the ids of its prompt. A usage error for what it cannot do."""
    from ...runtime.answers.request import GenerationRequest

    if options.raw:
        ids = loaded.encode(text, special=True)
        return GenerationRequest(ids=ids, params=params, response_format=options.response_format)
    if not loaded.chat_template:
        terminal.remark(NO_TEMPLATE)
        whole = "\n\n".join(part for part in (options.system_text, text) if part)
        ids = loaded.encode(whole, special=True)
        return GenerationRequest(ids=ids, params=params, response_format=options.response_format)
    messages = [{"role": "user", "content": text}]
    if options.system_text:
        messages.insert(0, {"role": "system", "content": options.system_text})
    request = GenerationRequest(messages, params=params, **options.asked(loaded))
    return replace(request, ids=loaded.encode_request(request))


def _encode(loaded: Model, text: str, options: GenerationOptions, params: SamplingParams) -> list[int]:
    if options.offered_tools:
        raise typer.BadParameter("tools go with one answer, without -N, --logprobs and --beams")
    return list(requested(loaded, text, options, params).ids or ())
