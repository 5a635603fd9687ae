"""`llm run`: one answer."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ...runtime.hub.catalogue import BY_NAME
from ..console import terminal
from ..console.options import TextOrJson, flag, with_options
from ..console.safe_text import as_json
from ..generation.options import GenerationOptions, check_texts
from ..generation.prompt import read_prompt, read_stdin, stdin_is_meant
from ..generation.reply import INTERRUPTED, generate, reply_facts, show_stats, why_cut
from ..run.answers import MOST_ANSWERS, write_answers
from ..run.beams import MOST_BEAMS, BeamFlags, EarlyStopping, write_beams
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
    no_stdin: Annotated[bool, flag("--no-stdin", help="Do not read stdin, even if it is a pipe.")] = False,
) -> None:
    """Answer one prompt.

    Piped text joins the prompt after a blank line: `git diff | llm run "Review this:"`.
    """
    words, files = prompt or [], options.file or []
    if words and words[0] in BY_NAME and not named_by_user(ctx, "model"):
        by_word, text = _model_and_text(words, no_stdin, files)
        model = by_word or model
    else:
        text = read_prompt(words, no_stdin, files)
    refuse_system_of_raw(options)
    params = replace(options.sampling(), logprobs=logprobs)
    flags = BeamFlags(beams, length_penalty, early_stopping, n_answers) if beams else None
    search = flags.params(params) if flags else None
    model = chosen_model(model)
    with closing(options.load(model, beams or 1)) as loaded:
        check_texts(loaded, params)
        if search is not None:
            ids = _encode(loaded, text, options, params)
            write_beams(loaded, model, ids, options, params, search, n_answers)
        elif n_answers > 1 or logprobs is not None:
            write_answers(loaded, model, _encode(loaded, text, options, params), options, params, n_answers)
        else:
            answer(loaded, model, text, options, params)


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
    """Write one reply to `text` as the options say; ends the command with 130 if Ctrl-C cut it."""
    request = requested(loaded, text, options, params)
    plain = options.output is TextOrJson.text
    sink = terminal.ModelText(wrap=not options.no_wrap)
    try:
        thinking = terminal.ThinkingText(hidden=options.hide_thinking or not plain)
        reply = generate(loaded, request, sink.write if plain else lambda piece: None, thinking)
    except Exception:
        if sink.text:  # what is there already still ends with a newline
            sink.finish()
        raise
    if not plain:
        terminal.write(as_json(reply_facts(name, reply)) + "\n")
    elif reply.text or reply.finish_reason != INTERRUPTED:
        sink.finish()
    if cut := why_cut(reply, loaded, cure="--repeat-penalty 1.1"):
        terminal.remark(f"({cut})")
    if options.stats:
        show_stats(reply)
    if reply.finish_reason == INTERRUPTED:
        raise typer.Exit(130)


def requested(
    loaded: Model, text: str, options: GenerationOptions, params: SamplingParams
) -> GenerationRequest:
    """What the options ask of the model, with the ids of its prompt. A usage error for what it cannot do."""
    from ...runtime.answers.request import GenerationRequest

    if options.raw:
        return GenerationRequest(ids=loaded.encode(text, special=True), params=params)
    if not loaded.chat_template:
        terminal.remark("this model has no chat template: it continues the text instead of answering it")
        whole = "\n\n".join(part for part in (options.system_text, text) if part)
        return GenerationRequest(ids=loaded.encode(whole, special=True), params=params)
    messages = [{"role": "user", "content": text}]
    if options.system_text:
        messages.insert(0, {"role": "system", "content": options.system_text})
    request = GenerationRequest(messages, params=params, **options.asked(loaded))
    return replace(request, ids=loaded.encode_request(request))


def _encode(loaded: Model, text: str, options: GenerationOptions, params: SamplingParams) -> list[int]:
    return list(requested(loaded, text, options, params).ids or ())
