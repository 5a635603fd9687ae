"""`llm run`: one answer."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from ..console import terminal
from ..console.generation import GenerationOptions
from ..console.options import DEFAULT_MODEL, Model_, TextOrJson, flag, with_options
from ..console.prompt import read_prompt
from ..console.reply import INTERRUPTED, as_json, generate, show_stats, why_cut

if TYPE_CHECKING:
    from ...runtime.engine.sampler import SamplingParams
    from ...runtime.model.model import Model


@with_options
def run(
    options: GenerationOptions,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="The prompt; - is stdin.", show_default=False),
    ] = None,
    model: Model_ = DEFAULT_MODEL,
    no_stdin: Annotated[bool, flag("--no-stdin", help="Do not read stdin, even if it is a pipe.")] = False,
) -> None:
    """Answer one prompt.

    Piped text joins the prompt after a blank line: `git diff | llm run "Review this:"`.
    """
    text = read_prompt(prompt or [], no_stdin, options.file or [])
    refuse_system_of_raw(options)
    params = options.sampling()
    with closing(options.load(model)) as loaded:
        answer(loaded, model, text, options, params)


def refuse_system_of_raw(options: GenerationOptions) -> None:
    """A usage error for a system prompt that would be lost."""
    if options.raw and options.system_text:
        raise typer.BadParameter("--raw has no place for a system prompt (-s)")


def answer(loaded: Model, name: str, text: str, options: GenerationOptions, params: SamplingParams) -> None:
    """Write one reply to `text` as the options say; ends the command with 130 if Ctrl-C cut it."""
    ids = _encode(loaded, text, options)
    plain = options.output is TextOrJson.text
    sink = terminal.ModelText(wrap=not options.no_wrap)
    try:
        reply = generate(loaded, ids, params, sink.write if plain else lambda piece: None)
    except Exception:
        if sink.text:  # what is there already still ends with a newline
            sink.finish()
        raise
    if not plain:
        terminal.write(terminal.as_json(as_json(name, reply)) + "\n")
    elif reply.text or reply.finish_reason != INTERRUPTED:
        sink.finish()
    if cut := why_cut(reply, loaded, cure="--repeat-penalty 1.1"):
        terminal.remark(f"({cut})")
    if options.stats:
        show_stats(reply)
    if reply.finish_reason == INTERRUPTED:
        raise typer.Exit(130)


def _encode(loaded: Model, text: str, options: GenerationOptions) -> list[int]:
    if options.raw:
        return loaded.encode(text, special=True)
    if not loaded.chat_template:
        terminal.remark("this model has no chat template: it continues the text instead of answering it")
        return loaded.encode("\n\n".join(part for part in (options.system_text, text) if part), special=True)
    messages = [{"role": "user", "content": text}]
    if options.system_text:
        messages.insert(0, {"role": "system", "content": options.system_text})
    return loaded.encode_chat(messages)
