"""Tools on the command line: their flags, what is asked, run, shown and printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from kukri.cli.console import terminal
from kukri.cli.console.options import TextOrJson
from kukri.cli.generation import tool_use
from kukri.cli.generation.options import GenerationOptions
from kukri.cli.generation.tool_use import MOST_ROUNDS, ToolUse
from kukri.cli.run.one_answer import write_reply
from kukri.runtime.answers.events import ToolCall
from kukri.runtime.answers.functions import Tool
from kukri.runtime.answers.request import GenerationRequest
from kukri.runtime.answers.running import LONGEST_RESULT, run_call
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.model.model import Model

from ...runtime.model.scripted import END, TEMPLATE, scripted

TOOL = '''
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    print("adding")
    return a + b

def _hidden(): ...

print("loading")
'''
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'


def add(a: int, b: int = 1) -> int:
    return a + b


def call(arguments: str = '{"a": 2}', name: str = "add") -> ToolCall:
    return ToolCall("1", name, arguments)


def model(*answers: str) -> Model:
    script: list[int] = []
    for answer in answers:
        script += [*answer.encode(), END]
    loaded = scripted(script, context=2048, **{"tokenizer.chat_template": TEMPLATE + "{# <tool_call> #}"})
    loaded.engine.machine.copy_page = lambda *pages: None  # it has no cache to copy in
    return loaded


def written(model: Model, options: GenerationOptions) -> None:
    params = SamplingParams(temperature=0)
    request = GenerationRequest("2+3?", params=params, **options.asked(model))
    write_reply(model, "tiny", request, options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(TOOL)
    return path


def test_functions_and_schemas_are_read(file: Path, tmp_path: Path) -> None:
    schema = {"name": "get_time", "parameters": {"type": "object", "properties": {}}}
    for content in (schema, [schema], {"tools": [{"type": "function", "function": schema}]}):
        (tmp_path / "tools.json").write_text(json.dumps(content))
        options = GenerationOptions(tool=[f"{file}:add"], tools=[str(tmp_path / "tools.json")])
        assert [tool.name for tool in options.offered_tools] == ["add", "get_time"]
    assert [tool.name for tool in GenerationOptions(tool=[str(file)]).offered_tools] == ["add"]
    assert GenerationOptions().offered_tools == ()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tool": ["{}:sub"]}, "there is no function sub"),
        ({"tool": ["{}x:add"]}, "there is no file"),
        ({"tools": ["{}"]}, "--tools"),
        ({"tools": ["{}x"]}, "--tools.*No such file"),
        ({"tool": ["{}:add", "{}:add"]}, "two tools have the name add"),
        ({"tool": ["{}:add"], "tool_choice": "sub"}, "sub is none of auto, none, required"),
        ({"tool_choice": "required"}, "needs --tool"),
    ],
)
def test_flags_that_make_no_sense(file: Path, flags: dict[str, Any], message: str) -> None:
    given = {k: [each.format(file) for each in v] if isinstance(v, list) else v for k, v in flags.items()}
    with pytest.raises(typer.BadParameter, match=message):
        _ = GenerationOptions(**given).asked_of_tools


def test_a_file_that_fails_says_why(tmp_path: Path) -> None:
    for text, why in (("1 / 0", "ZeroDivisionError"), ("import sys; sys.exit(0)", "SystemExit: 0")):
        (tmp_path / "bad.py").write_text(text)
        with pytest.raises(typer.BadParameter, match=f"fails: {why}"):
            _ = GenerationOptions(tool=[f"{tmp_path}/bad.py:f"]).offered_tools


def test_what_functions_print_is_no_answer(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = model(CALL, "Five.")
    written(loaded, GenerationOptions(tool=[f"{file}:add"], yes=True))
    out, err = capsys.readouterr()
    assert out == "Five.\n"
    assert [line for line in err.splitlines() if line.endswith("ing")] == ["loading", "adding"]


def test_results_are_text_and_errors_are_told() -> None:
    tool = Tool.of(add)
    assert run_call(call(), tool) == "3"
    assert run_call(call('{"c": 1}'), tool).startswith("error: TypeError")
    assert run_call(call(name="sub"), None) == "error: there is no function sub"

    def many() -> dict[str, Any]:
        return {"ä": [1, Path("x")]}

    def long() -> str:
        return "x" * (LONGEST_RESULT + 1)

    def slow() -> None:
        import time

        time.sleep(5)

    def leaving() -> None:
        sys.exit("gone")

    assert run_call(call("{}"), Tool.of(leaving)) == "error: SystemExit: gone"
    assert json.loads(run_call(call("{}"), Tool.of(many))) == {"ä": [1, "x"]}
    assert run_call(call("{}"), Tool.of(long)).endswith("(cut)")
    assert "took longer than 0.05 seconds" in run_call(call("{}"), Tool.of(slow), seconds=0.05)


def test_calls_are_printed_where_nobody_can_be_asked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(model("I add." + CALL), GenerationOptions(tool=[f"{file}:add"]))
    text, line, rest = capsys.readouterr().out.split("\n")
    printed = json.loads(line)
    assert text == "I add."
    assert (printed["name"], printed["arguments"]) == ("add", {"a": 2, "b": 3})
    assert rest == ""


def test_with_yes_they_are_run_and_it_goes_on(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = model(CALL, "Five.")
    written(loaded, GenerationOptions(tool=[f"{file}:add"], yes=True))
    out, err = capsys.readouterr()
    assert out == "Five.\n"
    assert "→ add(a=2, b=3)" in err
    assert "← 5" in err


def test_json_has_calls_and_steps(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = GenerationOptions(tool=[f"{file}:add"], output=TextOrJson.json)
    written(model(CALL), options)
    told = json.loads(capsys.readouterr().out)
    assert told["finish_reason"] == "tool_calls"
    assert told["tool_calls"][0]["arguments"] == {"a": 2, "b": 3}
    written(model(CALL, "Five."), GenerationOptions(tool=[f"{file}:add"], output=TextOrJson.json, yes=True))
    told = json.loads(capsys.readouterr().out)
    assert (told["text"], told["steps"][1]["content"]) == ("Five.", "5")


def test_rounds_are_bounded(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(model(*[CALL] * (MOST_ROUNDS + 2)), GenerationOptions(tool=[f"{file}:add"], yes=True))
    assert f"stopped after {MOST_ROUNDS} rounds" in capsys.readouterr().err


def test_it_asks_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter(["what\n", "y\n", "n\n", "a\n", ""])
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: True)
    monkeypatch.setattr(tool_use.sys, "stdin", type("In", (), {"readline": lambda self: next(answers)})())
    use = ToolUse([Tool.of(add)], yes=False, seconds=60)
    contents = [use.results([call()])[0]["content"] for _ in range(4)]
    assert contents[0] == "3"
    assert "does not want" in contents[1]
    assert contents[2:] == ["3", "3"]
    assert use.can_run([call()])
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: False)
    assert not use.can_run([call()])
    assert ToolUse([Tool.of(add)], yes=True, seconds=60).can_run([call()])
    assert not ToolUse([Tool.of({"name": "add"})], yes=True, seconds=60).can_run([call()])
    capsys.readouterr()


def test_thinking_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    for hide, shown in ((False, "Hm.\n\n"), (True, "")):
        thinks = scripted(
            "<think>Hm.</think>\n\nYes.", **{"tokenizer.chat_template": TEMPLATE + "{# <think> </think> #}"}
        )
        written(thinks, GenerationOptions(hide_thinking=hide))
        out, err = capsys.readouterr()
        assert (out, err) == ("Yes.\n", shown)
    written(thinks_again(), GenerationOptions(output=TextOrJson.json))
    told = json.loads(capsys.readouterr().out)
    assert (told["thinking"], told["text"]) == ("Hm.", "Yes.")


def thinks_again() -> Model:
    template = TEMPLATE + "{# <think> </think> #}"
    return scripted("<think>Hm.</think>\n\nYes.", **{"tokenizer.chat_template": template})


def test_contradicting_flags_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="exclude each other"):
        GenerationOptions(thinking=True, no_thinking=True).asked(model())
    with pytest.raises(typer.BadParameter, match="does not think"):
        GenerationOptions(thinking=True).asked(model())
