"""One reply to a prompt that is encoded, and what there is to say about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..console import terminal
from ..console.options import TextOrJson
from ..console.safe_text import as_json
from ..generation.reply import INTERRUPTED, Reply, generate, reply_facts, show_stats, why_cut

if TYPE_CHECKING:
    from ...runtime.answers.request import GenerationRequest
    from ...runtime.model.model import Model
    from ..generation.options import GenerationOptions

NO_TEMPLATE = "this model has no chat template: it continues the text instead of answering it"


def write_reply(loaded: Model, name: str, request: GenerationRequest, options: GenerationOptions) -> Reply:
    """Write the answer to a request, and what there is to say about it."""
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
    return reply
