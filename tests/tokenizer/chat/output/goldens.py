"""Answers as model families write them, and what is in them.

`marks`: what stands in the family's chat template; `special`: which of them are special tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "units": {"type": "array", "items": {"type": "string"}},
                    "exact": {"type": "boolean"},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            },
        },
    },
    {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
]
PARIS: tuple[str, Any] = ("get_weather", {"city": "Paris"})
OSLO: tuple[str, Any] = ("get_weather", {"city": "Oslo", "days": 3})
TIME: tuple[str, Any] = ("get_time", {})


@dataclass(frozen=True)
class Golden:
    """An answer and its parts. `begun`: the prompt ends with this mark."""

    marks: str
    answer: str
    text: str = ""
    thinking: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    special: tuple[str, ...] = ()
    begun: str = ""


# Special tokens of DeepSeek's, by their words.
DS = {
    name: f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"
    for name in ("tool calls begin", "tool calls end", "tool call begin", "tool call end", "tool sep")
}
DS_MARKS = tuple(DS.values())
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
KIMI = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>")  # fmt: skip
COHERE = ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>",
          "<|START_RESPONSE|>", "<|END_RESPONSE|>")  # fmt: skip
GEMMA_4 = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|tool_response>")
CODE = 'def f(x):\n    """Says "hi" & <b>\\n</b>."""\n    return {"a": [1, 2]}\n'

GOLDENS = {
    "hermes": Golden(
        "<tool_call>",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {"city": "Oslo", "days": 3}, "name": "get_weather"}\n</tool_call>',
        calls=[PARIS, OSLO],
    ),
    "hermes with text": Golden(
        "<tool_call>",
        'Let me look <b>it</b> up < 3.\n\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n'
        "That is all.",
        text="Let me look <b>it</b> up < 3.That is all.",
        calls=[TIME],
    ),
    "hermes, hard strings": Golden(
        "<tool_call>",
        '<tool_call>{"name": "write_file", "arguments": {"path": "a\\u00e9\\ud83e\\udd8a</tool_call>.py", '
        '"content": "1\\n\\"2\\" {[}] <tool_call>"}}</tool_call>',
        calls=[("write_file", {"path": "aé🦊</tool_call>.py", "content": '1\n"2" {[}] <tool_call>'})],
    ),
    "hermes, array and nested function": Golden(
        "<tool_call>",
        '<tool_call>[{"type": "function", "function": {"name": "get_time", "arguments": null}}, '
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}]',
        calls=[TIME, PARIS],
    ),
    "qwen3": Golden(
        "<tool_call> <think> </think> enable_thinking",
        "<think>\nThe user wants <b>weather</b>.\n\nI call it.\n</think>\n\nHere:\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        text="Here:",
        thinking="The user wants <b>weather</b>.\n\nI call it.",
        calls=[PARIS],
    ),
    "qwen3, empty thinking": Golden("<think> </think>", "<think>\n\n</think>\n\nTwelve.", text="Twelve."),
    "qwen3, begun by the prompt": Golden(
        "<think> </think>",
        "Three fours …\n</think>\n\nTwelve </think>.",
        text="Twelve </think>.",
        thinking="Three fours …",
        begun="<think>",
    ),
    "a tag within the text": Golden(
        "<think> </think>",
        "The tag <think> opens it, </think> closes it.",
        text="The tag <think> opens it, </think> closes it.",
    ),
    "smollm3": Golden(
        "<think> </think> /no_think <tool_call>",
        "<think>\nHm.\n</think>\n"
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}</tool_call>',
        thinking="Hm.",
        calls=[OSLO],
    ),
    "qwen3-coder": Golden(
        "<tool_call> <function= <parameter=",
        "I write it.\n<tool_call>\n<function=write_file>\n<parameter=path>\nsrc/a.py\n</parameter>\n"
        f"<parameter=content>\n{CODE}\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n42\n</parameter>\n<parameter=days>\n3\n"
        '</parameter>\n<parameter=units>\n["C", "F"]\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n'
        "</function>\n</tool_call>",
        text="I write it.",
        calls=[
            ("write_file", {"path": "src/a.py", "content": CODE}),
            ("get_weather", {"city": "42", "days": 3, "units": ["C", "F"], "exact": True}),
        ],
    ),
    "qwen3-coder without the outer tag": Golden(
        "<tool_call> <function= <parameter=",
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        text="</tool_call>",
        calls=[PARIS],
    ),
    "seed-oss": Golden(
        "<seed:tool_call> <function= <parameter= <seed:think> </seed:think>",
        "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=get_weather>\n"
        "<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
        thinking="Hm.",
        calls=[PARIS],
        special=("<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"),
    ),
    "minimax-m2": Golden(
        '<minimax:tool_call> <invoke name=" <think> </think>',
        'Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris'
        '</parameter>\n</invoke>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
        thinking="Hm.",
        calls=[PARIS, OSLO],
        begun="<think>",
    ),
    "glm-4.5": Golden(
        "<tool_call> <arg_key> <arg_value> <think> </think>",
        "\n<think>Hm.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo"
        "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
        "<tool_call>get_time\n</tool_call>",
        text="I look.",
        thinking="Hm.",
        calls=[OSLO, TIME],
        special=(
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ),
    ),
    "glm-4.7, on one line": Golden(
        "<tool_call> <arg_key>",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        calls=[PARIS],
    ),
    "llama 3, JSON": Golden(
        "<|python_tag|>",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; '
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}',
        calls=[PARIS, OSLO],
        special=("<|python_tag|>",),
    ),
    "llama 3, tagged": Golden(
        "<|python_tag|>",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}',
        calls=[PARIS],
        special=("<|python_tag|>",),
    ),
    "llama 3.1, function tags": Golden(
        "<function=",
        '<function=get_weather>{"city": "Paris"}</function>',
        calls=[PARIS],
    ),
    "llama 3.2, pythonic": Golden(
        "<|python_tag|>",
        "[get_weather(city='Paris'), get_weather(city=\"Oslo\", days=3), get_time()]",
        calls=[PARIS, OSLO, TIME],
    ),
    "llama 4": Golden(
        "<|python_start|> <|python_end|>",
        '<|python_start|>[get_weather(city="Paris")]<|python_end|>',
        calls=[PARIS],
        special=("<|python_start|>", "<|python_end|>"),
    ),
    "pythonic, all kinds of values": Golden(
        "<|tool_call_start|>",
        '<|tool_call_start|>[write_file(\'a\\\'b\\x41\\n\', content="""x"y\\\n\nz\\d"""), '
        "get_weather(city='O' 'slo', days=-3, units=[\"C\", 'F',], exact=True, "
        "more={'a': None, \"b\": (1, 2.5e1)})]<|tool_call_end|>",
        calls=[
            ("write_file", {"path": "a'bA\n", "content": 'x"y\nz\\d'}),
            (
                "get_weather",
                {
                    "city": "Oslo",
                    "days": -3,
                    "units": ["C", "F"],
                    "exact": True,
                    "more": {"a": None, "b": [1, 25.0]},
                },
            ),
        ],
        special=("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    "lfm2": Golden(
        "<|tool_call_start|> <|tool_list_start|>",
        'Checking.<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>One moment.',
        text="Checking.One moment.",
        calls=[PARIS],
        special=("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    "lfm2, JSON": Golden(
        "<|tool_call_start|>",
        '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|tool_call_end|>',
        calls=[PARIS],
        special=("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    "mistral, array": Golden(
        "[TOOL_CALLS]",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "aBcDeFgH1"}, '
        '{"name": "get_time", "arguments": {}}]',
        calls=[PARIS, TIME],
        special=("[TOOL_CALLS]",),
    ),
    "mistral, arguments": Golden(
        "[TOOL_CALLS] [ARGS] [CALL_ID]",
        'I look.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
        '[TOOL_CALLS]get_weather[CALL_ID]aBcDeFgH1[ARGS]{"city": "Oslo", "days": 3}',
        text="I look.",
        calls=[PARIS, OSLO],
        special=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ),
    "magistral": Golden(
        "[THINK] [/THINK] [TOOL_CALLS] [ARGS]",
        "[THINK]Hm [1].[/THINK]See [2].",
        text="See [2].",
        thinking="Hm [1].",
        special=("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"),
    ),
    "granite 3": Golden(
        "<|tool_call|> <think></think> <response></response>",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "get_time", "arguments": {}}]',
        calls=[PARIS, TIME],
        special=("<|tool_call|>",),
    ),
    "granite 3.3, thinking": Golden(
        "<|tool_call|> <think></think> <response></response>",
        "<think>Three fours.</think>\n<response>Twelve.</response>",
        text="Twelve.",
        thinking="Three fours.",
    ),
    "granite 3.2, thinking": Golden(
        "Here is my thought process: Here is my response:",
        "Here is my thought process:\nThree fours.\n\nHere is my response:\nTwelve.",
        text="Twelve.",
        thinking="Three fours.",
    ),
    "phi-4-mini": Golden(
        "<|tool_call|> <|/tool_call|>",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>',
        calls=[PARIS],
        special=("<|tool_call|>", "<|/tool_call|>"),
    ),
    "deepseek r1": Golden(
        f"<think> </think> {' '.join(DS_MARKS)}",
        "Hm.\n</think>\n\nI look.{tool calls begin}{tool call begin}function{tool sep}get_weather\n```json\n"
        '{{"city": "Paris"}}\n```{tool call end}\n{tool call begin}function{tool sep}get_time\n'
        "```json\n{{}}\n```{tool call end}{tool calls end}".format(**DS),
        text="I look.",
        thinking="Hm.",
        calls=[PARIS, TIME],
        special=DS_MARKS,
        begun="<think>",
    ),
    "deepseek v3.1": Golden(
        f"<think> </think> {' '.join(DS_MARKS)}",
        "I look.{tool calls begin}{tool call begin}get_weather{tool sep}"
        '{{"city": "Paris"}}{tool call end}{tool call begin}get_time{tool sep}{{}}{tool call end}'
        "{tool calls end}".format(**DS),
        text="I look.",
        calls=[PARIS, TIME],
        special=DS_MARKS,
    ),
    "kimi k2": Golden(
        " ".join(KIMI),
        "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>'
        "functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        text="I look.",
        calls=[PARIS, TIME],
        special=KIMI,
    ),
    "gpt-oss": Golden(
        " ".join(HARMONY),
        "<|channel|>analysis<|message|>We need {the} weather.<|end|><|start|>assistant<|channel|>analysis"
        "<|message|>Go.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Paris"}<|call|>',
        text="I look.",
        thinking="We need {the} weather.\n\nGo.",
        calls=[PARIS],
        special=HARMONY,
    ),
    "gpt-oss, recipient in front": Golden(
        " ".join(HARMONY),
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city":"Paris"}',
        calls=[PARIS],
        special=HARMONY,
    ),
    "gpt-oss, final": Golden(
        " ".join(HARMONY),
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Twelve.\n",
        text="Twelve.\n",
        thinking="Hm.",
        special=HARMONY,
    ),
    "gemma 3, code block": Golden(
        "<start_of_turn>",
        'I look.\n```tool_code\nget_weather(city="Paris")\nget_time()\n```',
        text="I look.",
        calls=[PARIS, TIME],
    ),
    "functiongemma": Golden(
        "<start_function_call> <end_function_call> <escape>",
        "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}<end_function_call>",
        calls=[OSLO],
        special=("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    "gemma 4": Golden(
        "<|tool_call> <|channel> <channel|>",
        '<|channel>thought\nHm, {a:1}.\n<channel|>I look.<|tool_call>call:get_weather{city:<|"|>Oslo, '
        '}<|"|>,days:3,exact:true,units:[<|"|>C<|"|>,<|"|>F"<|"|>],more:{<|"|>k<|"|>:[1,-2.5,null],e:{}}}'
        "<tool_call|><|tool_call>call:get_time{}<tool_call|>",
        text="I look.",
        thinking="Hm, {a:1}.",
        calls=[
            (
                "get_weather",
                {
                    "city": "Oslo, }",
                    "days": 3,
                    "exact": True,
                    "units": ["C", 'F"'],
                    "more": {"k": [1, -2.5, None], "e": {}},
                },
            ),
            TIME,
        ],
        special=GEMMA_4,
    ),
    "command r7b": Golden(
        " ".join(COHERE),
        '<|START_THINKING|>I will look.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", '
        '"tool_name": "get_weather", "parameters": {"city": "Paris"}},\n    {"tool_call_id": "1", '
        '"tool_name": "get_time", "parameters": {}}\n]<|END_ACTION|>',
        thinking="I will look.",
        calls=[PARIS, TIME],
        special=COHERE,
    ),
    "command r7b, response": Golden(
        " ".join(COHERE),
        "<|START_RESPONSE|>Twelve.<|END_RESPONSE|>",
        text="Twelve.",
        special=COHERE,
    ),
    "command r": Golden(
        "Action:",
        'Action: ```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": {\n'
        '            "city": "Paris"\n        }\n    }\n]```',
        calls=[PARIS],
    ),
    "nemotron": Golden(
        "<TOOLCALL>",
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>',
        calls=[PARIS],
    ),
    "a guess, fenced": Golden(
        "<|im_start|>",
        'Sure:\n```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```\nDone.',
        text="Sure:Done.",
        calls=[PARIS],
    ),
    "no tools in the template": Golden(
        "<|im_start|>",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
        calls=[PARIS],
    ),
}

# Answers in which nothing, or not all, is a call: all of the text is there.
TEXTS = {
    "plain": Golden("<tool_call>", "\n Hello <world> [1] {x}!\n\n", text="\n Hello <world> [1] {x}!\n\n"),
    "empty": Golden("<tool_call>", ""),
    "json": Golden("<|python_tag|>", '{"city": "Paris"}', text='{"city": "Paris"}'),
    "json with a name": Golden(
        "<|python_tag|>", '{"name": "Bob", "arguments": {}}', text='{"name": "Bob", "arguments": {}}'
    ),
    "a list": Golden("<|python_tag|>", "[get_name(1), 2]", text="[get_name(1), 2]"),
    "a code block": Golden("<|im_start|>", '```json\n{"a": 1}\n```\n', text='```json\n{"a": 1}\n```\n'),
    "no JSON": Golden(
        "<tool_call>",
        "<tool_call>\nnot json at all</tool_call>!",
        text="<tool_call>\nnot json at all</tool_call>!",
    ),
    "cut in the arguments": Golden(
        "<tool_call>",
        'So: <tool_call>\n{"name": "get_weather", "arguments": {"city": "Par',
        text='So:<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par',
    ),
    "broken behind a call": Golden(
        "<tool_call>",
        '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>\n<tool_call>{"name": "get_weather", '
        '"arguments": {"city": Paris}}</tool_call>',
        text='<tool_call>{"name": "get_weather", "arguments": {"city": Paris}}</tool_call>',
        calls=[TIME],
    ),
    "no name": Golden(
        "<tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        text='<tool_call>{"arguments": {}}</tool_call>',
    ),
    "arguments that are no object": Golden(
        "<tool_call>",
        '<tool_call>{"name": "get_time", "arguments": [1]}</tool_call>',
        text='<tool_call>{"name": "get_time", "arguments": [1]}</tool_call>',
    ),
    "cut in xml": Golden(
        "<tool_call> <function=",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
        text="<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
    ),
    "cut in glm": Golden(
        "<tool_call> <arg_key>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Par",
        text="<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Par",
    ),
    "cut in gemma": Golden(
        "<|tool_call>",
        '<|tool_call>call:get_weather{city:<|"|>Par',
        text='<|tool_call>call:get_weather{city:<|"|>Par',
        special=GEMMA_4,
    ),
    "cut in mistral": Golden(
        "[TOOL_CALLS] [ARGS]",
        'I look. [TOOL_CALLS]get_weather[ARGS]{"city": ',
        text='I look.[TOOL_CALLS]get_weather[ARGS]{"city": ',
        special=("[TOOL_CALLS]", "[ARGS]"),
    ),
    "cut in deepseek": Golden(
        DS["tool calls begin"],
        "{tool calls begin}{tool call begin}get_weather{tool sep}{{".format(**DS),
        text="{tool calls begin}{tool call begin}get_weather{tool sep}{{".format(**DS),
        special=DS_MARKS,
    ),
    "cut in harmony": Golden(
        " ".join(HARMONY),
        '<|channel|>commentary to=functions.get_weather<|message|>{"city"',
        text='<|channel|>commentary to=functions.get_weather<|message|>{"city"',
        special=HARMONY,
    ),
    "cut in pythonic": Golden(
        "<|tool_call_start|>",
        "<|tool_call_start|>[get_weather(city='Par",
        text="<|tool_call_start|>[get_weather(city='Par",
        special=("<|tool_call_start|>",),
    ),
    "cut in thinking": Golden("<think> </think>", "<think>\nHm, so", thinking="Hm, so"),
}
