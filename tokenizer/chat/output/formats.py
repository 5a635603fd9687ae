"""Which marks a model writes, by its chat template and its vocabulary."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .call_style import HARMONY, HERMES, CallStyle, call_style
from .families import cohere, deepseek, gemma, harmony, hermes, llama, mistral
from .families.json_calls import json_calls
from .families.xml_calls import FUNCTION_STYLE, INVOKE_STYLE, xml_calls
from .marks import THINKING
from .stream import Steps, Stream

CallReader = Callable[[Stream], Steps[Any]]

# What ends thinking that went on for too long, where the closing mark alone is not what the model is used to.
ENDINGS = {"<think>": "\n</think>\n\n"}
HARMONY_ENDING = (
    f"{harmony.END}{harmony.START}assistant{harmony.CHANNEL}final{harmony.MESSAGE}"  # of analysis
)

# What begins calls, and who reads them.
CALLS: dict[str, CallReader] = {
    hermes.OPEN: hermes.tool_call,
    "<|tool_call|>": partial(json_calls, closers=("<|/tool_call|>",)),  # Granite 3, Phi-4-mini
    "<TOOLCALL>": partial(json_calls, closers=("</TOOLCALL>",)),  # Nemotron
    mistral.OPEN: mistral.mistral_calls,
    deepseek.OPEN: deepseek.deepseek_calls,
    deepseek.KIMI_OPEN: deepseek.kimi_calls,
    gemma.OPEN: gemma.gemma_call,
    gemma.FUNCTION_OPEN: gemma.gemma_call,
    "<|tool_call_start|>": partial(llama.tagged_calls, closers=("<|tool_call_end|>",)),  # LFM2
    llama.TAG: llama.tagged_calls,
    llama.PYTHON_OPEN: partial(llama.tagged_calls, closers=(llama.PYTHON_CLOSE,)),
    cohere.OPEN: cohere.cohere_calls,
    cohere.OLD_OPEN: cohere.old_cohere_calls,
    "<seed:tool_call>": partial(xml_calls, style=FUNCTION_STYLE, closer="</seed:tool_call>"),
    "<minimax:tool_call>": partial(xml_calls, style=INVOKE_STYLE, closer="</minimax:tool_call>"),
    llama.FUNCTION: llama.function_tag,  # last: within other marks it is a part of their calls
}
# What models without a format of their own write when they are shown functions; the name must be one's.
GUESSED: dict[str, CallReader] = {
    hermes.OPEN: hermes.tool_call,
    gemma.CODE_OPEN: gemma.code_block,
    "```json": partial(json_calls, closers=("```",), known_only=True),
    "<tools>": partial(json_calls, closers=("</tools>",), known_only=True),
    "<function_call>": partial(json_calls, closers=("</function_call>",), known_only=True),
}
# Special tokens that stand within calls; all others that a reader needs begin or end them.
WITHIN = (
    "<|tool_call_end|>", "<|/tool_call|>", mistral.ID, mistral.ARGUMENTS, deepseek.CLOSE, deepseek.CALL,
    deepseek.SEPARATOR, deepseek.CALL_END, deepseek.KIMI_CLOSE, deepseek.KIMI_CALL, deepseek.KIMI_ARGUMENTS,
    deepseek.KIMI_END, gemma.CLOSE, gemma.FUNCTION_CLOSE, '<|"|>', "<escape>", llama.PYTHON_CLOSE,
    cohere.CLOSE, hermes.CLOSE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "</seed:tool_call>", "</minimax:tool_call>",
)  # fmt: skip
# Tags around the text that follows thinking: Granite 3.3, Command R7B.
HIDDEN = (("<response>", "</response>"), ("<|START_RESPONSE|>", "<|END_RESPONSE|>"))
_SHORT_IDS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class OutputFormat:
    """How a model marks what it writes.

    - `thinking`: the marks around thinking, those that close by those that open.
    - `calls`: who reads calls, by the mark that begins them. `call_style`: how they are written.
    - `is_harmony`: answers are messages with headers, instead.
    - `hidden`: tags that are no part of the text.
    - `special`: those of all these marks that are special tokens.
    - `takes_tools`: the chat template tells the model of tools.
    - `short_ids`: ids of calls have nine letters and digits, and the template refuses others (Mistral).
    """

    thinking: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, CallReader] = field(default_factory=dict)
    call_style: CallStyle = HERMES
    is_harmony: bool = False
    hidden: tuple[str, ...] = ()
    special: frozenset[str] = frozenset()
    takes_tools: bool = False
    short_ids: bool = False

    @property
    def thinks(self) -> bool:
        """Whether there may be thinking in an answer."""
        return bool(self.thinking) or self.is_harmony

    def begun_thinking(self, prompt_end: str) -> str:
        """The mark that begins thinking, if the prompt ends with it; "" if not."""
        end = prompt_end.rstrip()
        return next((mark for mark in self.thinking if end.endswith(mark)), "")

    def ending(self, opening: str) -> str:
        """What ends thinking that `opening` began ("" in harmony), and leads to the answer."""
        return HARMONY_ENDING if self.is_harmony else ENDINGS.get(opening, self.thinking[opening])

    def new_id(self) -> str:
        """A new id of a call, a random one."""
        if self.short_ids:
            return "".join(secrets.choice(_SHORT_IDS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


PLAIN = OutputFormat()


def output_format(
    template: str | None, special: Collection[str] = (), added: Collection[str] = ()
) -> OutputFormat:
    """The format of a model with this chat template (None: it has none) and these tokens.

    `special`: the spellings of special tokens, which readers do not see; `added`: those of other tokens that
    are not made of text. A mark counts that the template has, or that is such a token.
    """
    if template is None:
        return PLAIN
    tokens = {*special, *added}

    def has(mark: str) -> bool:
        return mark in template or mark in tokens

    # Templates of models without harmony may have a word of it, and so may vocabularies.
    is_harmony = all(map(has, (harmony.START, harmony.CHANNEL, harmony.MESSAGE)))
    thinking = (
        {} if is_harmony else {o: c for o, c in THINKING.items() if has(o) or (has(c) and c[:1] != "H")}
    )
    if "<|channel>" in tokens and "<channel|>" in tokens:
        thinking["<|channel>thought"] = "<channel|>"
    calls = {mark: reader for mark, reader in CALLS.items() if has(mark)}
    takes_tools = re.search(r"\btools\b", template) is not None
    style = HARMONY if is_harmony else HERMES  # which models are told to write whose templates know no tools
    if takes_tools and not is_harmony:
        first = next((mark for mark in calls if mark in template), next(iter(calls), ""))
        style = call_style(first, has, template.__contains__)
    calls = calls | {mark: reader for mark, reader in GUESSED.items() if mark not in calls}
    return OutputFormat(
        thinking=thinking,
        calls={} if is_harmony else calls,
        call_style=style,
        is_harmony=is_harmony,
        hidden=tuple(tag for pair in HIDDEN if has(pair[0]) and has(pair[1]) for tag in pair),
        special=frozenset(special),
        takes_tools=takes_tools,
        short_ids=has(mistral.OPEN),
    )
