"""`llm run --fim PREFIX SUFFIX`: what belongs between two texts."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import typer

from ..generation.input_files import text_or_file
from ..generation.options import GenerationOptions, check_texts
from ..generation.prompt import check_utf8
from ..generation.reply import exit_code
from .one_answer import write_reply


def fill_in(texts: tuple[str, str], options: GenerationOptions, model: str, has_prompt: bool) -> None:
    """Write the middle; ends the command as `run` does. A usage error for a model without tokens for it."""
    if has_prompt or options.system_text or options.offered_tools:
        raise typer.BadParameter("--fim takes two texts, and no prompt, system prompt or tools beside them")
    from ...runtime.answers.request import GenerationRequest
    from ...tokenizer import TokenizerError
    from ...tokenizer.fim import fim_ends

    prefix, suffix = (text_or_file(text) for text in texts)
    check_utf8("the text for --fim", prefix + suffix)
    params = options.sampling()
    with closing(options.load(model)) as loaded:
        check_texts(loaded, params)
        try:
            ids = loaded.encode_fim(prefix, suffix)
        except TokenizerError as problem:
            raise typer.BadParameter(str(problem)) from None
        params = replace(params, stop=(*params.stop, *fim_ends(loaded.tokenizer)))
        request = GenerationRequest(ids=ids, params=params, response_format=options.response_format)
        if code := exit_code(write_reply(loaded, model, request, options)):
            raise typer.Exit(code)
