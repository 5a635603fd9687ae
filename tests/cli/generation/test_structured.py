"""--json, --json-schema, --regex, --grammar, --choice, and exit code 6."""

from __future__ import annotations

import json
import re

import pytest

from ...running import failed

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def run_inside(llm_inside, *arguments):
    """(exit code, stdout, stderr)."""
    done = llm_inside(*arguments)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def files(tmp_path):
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "list.gbnf").write_text('root ::= item ("," item)?\nitem ::= [a-z] [a-z]? # short\n')
    (tmp_path / "list.lark").write_text('start: "<" /[0-9]/ ">"\n')
    return tmp_path


def test_forms(llm_inside, tiny, files):
    def run(*flags):
        code, out, err = run_inside(llm_inside, "run", "-m", tiny, "-t", "0", *flags, "Say it")
        assert code == 0, err
        return out.removesuffix("\n")

    for schema in (json.dumps(SCHEMA), files / "schema.json"):
        assert set(json.loads(run("--json-schema", schema))) == {"ok"}
    assert re.fullmatch("[a-f]{3}", run("--regex", "[a-f]{3}"))
    assert re.fullmatch("<[0-9]>", run("--grammar", files / "list.lark"))
    assert re.fullmatch("[a-z]{1,2}(,[a-z]{1,2})?", run("--grammar", files / "list.gbnf"))
    assert run("--choice", "red, green") in ("red", "green")
    facts = json.loads(run("--choice", "red,green", "-o", "json"))
    assert facts["complete"] is True
    told = run("--json-schema", json.dumps(SCHEMA), "-o", "json")
    untold = run("--json-schema", json.dumps(SCHEMA), "--no-schema-prompt", "-o", "json")
    assert json.loads(told)["stats"]["prompt_tokens"] > json.loads(untold)["stats"]["prompt_tokens"]
    answers = json.loads(run("--regex", "[ab]", "-N", "3", "-o", "json"))
    assert all(re.fullmatch("[ab]", answer["text"]) for answer in answers)


def test_a_cut_answer_says_so_and_ends_with_6(llm_inside, tiny):
    flags = ("-m", tiny, "-t", "0", "-n", "3")
    code, out, err = run_inside(llm_inside, "run", *flags, "--json-schema", json.dumps(SCHEMA), "Go")
    assert code == 6
    assert out.startswith("{")
    assert err.count("\n") == 1
    assert "-n" in err
    assert "form" in err
    code, _, err = run_inside(llm_inside, "run", *flags, "--json", "-N", "2", "Go")
    assert code == 6
    code, out, err = run_inside(llm_inside, "run", *flags, "--json", "-o", "json", "Go")
    assert code == 6
    assert json.loads(out)["complete"] is False
    code, _, err = run_inside(llm_inside, "run", *flags, "--regex", "[ab]+", "Go")
    assert code == 0  # it is one already


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--json", "--regex", "a"), "--json and --regex"),
        (("--json-schema", '{"not": {}}'), "not"),
        (("--json-schema", '{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (("--json-schema", "{"), "JSON"),
        (("--json-schema", "[1]"), "neither a file nor JSON"),
        (("--json-schema", "no-such-file.json"), "neither a file nor JSON"),
        (("--regex", "(?<=a)b"), "look-around"),
        (("--grammar", "no-such-file.gbnf"), "no-such-file"),
        (("--choice", " , "), "choices"),
    ],
)
def test_usage_errors(llm_inside, tiny, flags, message):
    error = failed(llm_inside("run", "-m", tiny, *flags, "Go"), 2)
    assert message in error
