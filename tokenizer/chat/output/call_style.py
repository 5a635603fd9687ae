"""How a model's family writes calls, for those who make it write them: the counterpart of the readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .families import cohere, deepseek, gemma, glm, harmony, hermes, llama, mistral
from .families.xml_calls import FUNCTION_STYLE, INVOKE_STYLE, Style

Writing: TypeAlias = Literal["json", "python", "tags", "gemma"]
NUMBER = "\0number\0"  # in a style: some digits
LINE = "\0line\0"  # a line end that may be missing
SHORT_ID = "\0id\0"  # nine letters and digits


@dataclass(frozen=True)
class CallStyle:
    """How calls are written:

        opening (before NAME between ARGUMENTS after) separator (before …) closing

    `arguments`: their notation: JSON; key=value as in Python; each in tags; Gemma's own. `tags`: what stands
    in front of an argument's name, between that and the value, and behind the value. `quote`: around texts
    in Gemma's. `thought`: what begins and what ends messages that may come first, in harmony. `several`:
    whether an answer may have more than one call.
    """

    before: str
    between: str
    after: str
    opening: str = ""
    closing: str = ""
    separator: str = "\n"
    arguments: Writing = "json"
    tags: tuple[str, str, str] = ("", "", "")
    quote: str = ""
    thought: tuple[str, str] | None = None
    several: bool = True

    def begins_with(self, mark: str) -> bool:
        """Whether calls begin with `mark`, and text hardly ever does."""
        return mark[:1] in ("<", "[") and (self.opening or self.before).startswith(mark)


def _json(opening: str, closing: str, key: str = "arguments", separator: str = "\n") -> CallStyle:
    """Calls in JSON with marks of their own."""
    return CallStyle(
        opening + '{"name": "', f'", "{key}": ', "}" + closing, separator=separator
    )  # fmt: skip


def _listed(opening: str, closing: str, key: str = "arguments") -> CallStyle:
    """One array of JSON with all calls."""
    return CallStyle(
        '{"name": "', f'", "{key}": ', "}", opening=opening + "[", closing="]" + closing, separator=", "
    )


def _pythonic(opening: str, closing: str) -> CallStyle:
    return CallStyle(
        "", "(", ")", opening=opening + "[", closing="]" + closing, separator=", ", arguments="python"
    )


def _tagged(style: Style, opening: str, closing: str, padded: bool) -> CallStyle:
    """Calls with tags around each argument."""
    pad = "\n" if padded else ""
    return CallStyle(
        style.function[0], style.function[1] + "\n", style.function_end + "\n", opening=opening + "\n",
        closing=closing, separator="", arguments="tags",
        tags=(style.parameter[0], style.parameter[1] + pad, pad + style.parameter_end + "\n"),
    )  # fmt: skip


HERMES = _json(hermes.OPEN + LINE, LINE + hermes.CLOSE)
BARE = _json("", "", "parameters", "; ")  # Llama 3
HARMONY = CallStyle(
    f"{harmony.CHANNEL}commentary to=functions.", f" {harmony.CONSTRAIN}json{harmony.MESSAGE}", harmony.CALL,
    thought=(harmony.ANALYSIS, f"{harmony.END}{harmony.START}assistant"), several=False,
)  # fmt: skip
_QWEN_CODER = CallStyle(
    f"{hermes.OPEN}\n{FUNCTION_STYLE.function[0]}", ">\n", f"{FUNCTION_STYLE.function_end}\n{hermes.CLOSE}",
    arguments="tags", tags=(FUNCTION_STYLE.parameter[0], ">\n", f"\n{FUNCTION_STYLE.parameter_end}\n"),
)  # fmt: skip
_STYLES = {
    "<|tool_call|>": _listed("<|tool_call|>", ""),  # Granite 3
    "<TOOLCALL>": _listed("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron
    "<|tool_call_start|>": _pythonic("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
    llama.PYTHON_OPEN: _pythonic("", ""),  # Llama 4
    llama.TAG: BARE,
    llama.FUNCTION: CallStyle(llama.FUNCTION, ">", llama.FUNCTION_END),
    gemma.OPEN: CallStyle(
        gemma.OPEN + "call:", "{", "}" + gemma.CLOSE, separator="", arguments="gemma", quote='<|"|>'
    ),
    gemma.FUNCTION_OPEN: CallStyle(
        gemma.FUNCTION_OPEN + "call:", "{", "}" + gemma.FUNCTION_CLOSE, separator="", arguments="gemma",
        quote="<escape>",
    ),
    deepseek.KIMI_OPEN: CallStyle(
        deepseek.KIMI_CALL + "functions.", f":{NUMBER}{deepseek.KIMI_ARGUMENTS}", deepseek.KIMI_END,
        opening=deepseek.KIMI_OPEN, closing=deepseek.KIMI_CLOSE, separator="",
    ),
    cohere.OPEN: CallStyle(
        f'{{"tool_call_id": "{NUMBER}", "tool_name": "', '", "parameters": ', "}",
        opening=cohere.OPEN + "[\n    ", closing="\n]" + cohere.CLOSE, separator=",\n    ",
    ),
    cohere.OLD_OPEN: CallStyle(
        '{\n        "tool_name": "', '",\n        "parameters": ', "\n    }",
        opening=cohere.OLD_OPEN + " ```json\n[\n    ", closing="\n]```", separator=",\n    ",
    ),
    "<seed:tool_call>": _tagged(FUNCTION_STYLE, "<seed:tool_call>", "</seed:tool_call>", padded=False),
    "<minimax:tool_call>": _tagged(
        INVOKE_STYLE, "<minimax:tool_call>", "</minimax:tool_call>", padded=False
    ),
}  # fmt: skip


def call_style(mark: str, has: Callable[[str], bool], says: Callable[[str], bool]) -> CallStyle:
    """How a model writes the calls that `mark` begins. `has`: whether it has a mark, in its chat template or
    as a token; `says`: whether its template has a text."""
    if mark == hermes.OPEN and says(glm.KEY):
        end = "" if says(f"{glm.KEY_END}{glm.VALUE}") else "\n"  # GLM-4.7 writes a call on one line
        return CallStyle(
            hermes.OPEN, end, glm.CLOSE, arguments="tags",
            tags=(glm.KEY, f"{glm.KEY_END}{end}{glm.VALUE}", glm.VALUE_END + end),
        )  # fmt: skip
    if mark == hermes.OPEN and says(FUNCTION_STYLE.parameter[0]):
        return _QWEN_CODER
    if mark == "<|tool_call|>" and has("<|/tool_call|>"):
        return _listed("<|tool_call|>", "<|/tool_call|>")  # Phi-4-mini
    if mark == llama.PYTHON_OPEN and says('"parameters"'):
        return BARE
    if mark == mistral.OPEN:
        if not has(mistral.ARGUMENTS):
            return _listed(mistral.OPEN, "")
        id_ = mistral.ID + SHORT_ID if says(mistral.ID) else ""
        return CallStyle(mistral.OPEN, id_ + mistral.ARGUMENTS, "", separator="")
    if mark == deepseek.OPEN:
        named, fence = deepseek.CALL, deepseek.SEPARATOR
        after, line = deepseek.CALL_END, ""
        if says("```json"):
            named += "function" + deepseek.SEPARATOR
            fence, after, line = "\n```json\n", "\n```" + after, "\n"
        return CallStyle(named, fence, after, opening=deepseek.OPEN, closing=deepseek.CLOSE, separator=line)
    return _STYLES.get(mark, HERMES)
