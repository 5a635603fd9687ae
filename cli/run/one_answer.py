"""One reply to a prompt that is encoded, and what there is to say about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..console import terminal
from ..console.options import TextOrJson
from ..console.safe_text import as_json
from ..generation.reply import INTERRUPTED, Reply, generate, reply_facts, show_stats, why_cut
from ..generation.tool_use import MOST_ROUNDS, ToolUse, call_facts

if TYPE_CHECKING:
    from ...runtime.answers.request import GenerationRequest
    from ...runtime.model.model import Model
    from ..generation.options import GenerationOptions

NO_TEMPLATE = "this model has no chat template: it continues the text instead of answering it"


def write_reply(loaded: Model, name: str, request: GenerationRequest, options: GenerationOptions) -> Reply:
    """Write the answer to a request, and what there is to say about it.

    Functions that the model calls are run, if somebody agrees, and it goes on; other calls are written, a
    JSON object in each line.
    """
    plain = options.output is TextOrJson.text
    use = ToolUse(options.offered_tools, options.yes, options.tool_timeout)
    steps: list[dict[str, Any]] = []
    reply = _write(loaded, request, options)
    for n in range(MOST_ROUNDS + 1):
        if not reply.tool_calls or not use.can_run(reply.tool_calls):
            break
        if n == MOST_ROUNDS:
            terminal.remark(f"(stopped after {n} rounds of calls)")
            break
        steps += [reply.message, *use.results(reply.tool_calls)]
        reply = _write(loaded, followed_by(loaded, request, steps), options)
    if not plain:
        facts = reply_facts(name, reply)
        terminal.write(as_json({**facts, "steps": steps} if steps else facts) + "\n")
    for call in reply.tool_calls if plain else ():
        terminal.write(as_json(call_facts(call)) + "\n")
    if cut := why_cut(reply, loaded, cure="--repeat-penalty 1.1"):
        terminal.remark(f"({cut})")
    if options.stats:
        show_stats(reply)
    return reply


def followed_by(loaded: Model, request: GenerationRequest, steps: list[dict[str, Any]]) -> GenerationRequest:
    """The request that goes on behind calls and their results. Which function is called is free then."""
    messages = request.messages
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    following = replace(request, messages=[*(messages or ()), *steps], tool_choice="auto", ids=None, begun=())
    return replace(following, ids=loaded.encode_request(following))


def _write(loaded: Model, request: GenerationRequest, options: GenerationOptions) -> Reply:
    """Write the text of one answer, if text is wanted."""
    plain = options.output is TextOrJson.text
    sink = terminal.ModelText(wrap=not options.no_wrap)
    try:
        thinking = terminal.ThinkingText(hidden=options.hide_thinking or not plain)
        reply = generate(loaded, request, sink.write if plain else lambda piece: None, thinking)
    except Exception:
        if sink.text:  # what is there already still ends with a newline
            sink.finish()
        raise
    if plain and (reply.text or (reply.finish_reason != INTERRUPTED and not reply.tool_calls)):
        sink.finish()
    return reply
