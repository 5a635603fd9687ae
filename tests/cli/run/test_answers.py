"""`llm run` with several answers (-N) and with log probabilities, and the flags of sampling."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import typer

from kukri.cli.console import terminal
from kukri.cli.console.options import TextOrJson
from kukri.cli.generation.options import GenerationOptions
from kukri.cli.generation.reply import INTERRUPTED, LOOP
from kukri.cli.run.answers import generate_answers, write_answers
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.options import LoadOptions

from ...running import Run, failed
from ...tiny_model import write_tiny_model

HOT = ("-t", "3", "--top-k", "0", "--min-p", "0", "--seed", "7", "-n", "12")


def test_several_answers_are_those_of_the_seeds_that_follow(llm_inside: Run, tiny: Path) -> None:
    together = llm_inside("run", "-m", tiny, *HOT, "-N", 3, "hello")
    assert together.returncode == 0, together.stderr.decode()
    alone = [llm_inside("run", "-m", tiny, *HOT, "--seed", 7 + i, "hello").stdout for i in range(3)]
    assert len(set(alone)) == 3
    assert together.stdout == b"---\n".join(alone)
    assert together.stderr.decode().count("cut after 12 tokens") == 3
    told = json.loads(llm_inside("run", "-m", tiny, *HOT, "-N", 3, "-o", "json", "hello").stdout)
    assert [each["text"] + "\n" for each in told] == [each.decode() for each in alone]
    assert all("logprobs" not in each for each in told)
    assert told[2]["stats"]["cached_tokens"] == told[2]["stats"]["prompt_tokens"] - 1


def test_log_probabilities_as_json(llm_inside: Run, tiny: Path) -> None:
    flags = ("run", "-m", tiny, "-t", 0, "-n", 5, "-o", "json")
    plain = json.loads(llm_inside(*flags, "hello").stdout)
    told = json.loads(llm_inside(*flags, "--logprobs", 2, "hello").stdout)
    assert told["text"] == plain["text"] == "".join(each["token"] for each in told["logprobs"])
    assert "logprobs" not in plain
    for each in told["logprobs"]:
        assert bytes(each["bytes"]).decode() == each["token"]
        assert len(each["top"]) == 2
        assert each["top"][0] == {name: each[name] for name in ("id", "token", "bytes", "logprob")}
        assert 0 > each["logprob"] > each["top"][1]["logprob"]
        assert sum(math.exp(other["logprob"]) for other in each["top"]) <= 1
    told = json.loads(llm_inside(*flags, "--logprobs", 0, "hello").stdout)
    assert [each["top"] for each in told["logprobs"]] == [[]] * 5


def test_log_probabilities_as_a_table_on_stderr(llm_inside: Run, tiny: Path) -> None:
    plain = llm_inside("run", "-m", tiny, "-t", 0, "-n", 3, "hello")
    done = llm_inside("run", "-m", tiny, "-t", 0, "-n", 3, "--logprobs", 2, "hello")
    assert done.stdout == plain.stdout
    lines = done.stderr.decode().splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("token"))
    assert lines[header].split() == ["token", "probability", "logprob", "likeliest", "in", "its", "place"]
    assert all("%" in line for line in lines[header + 1 : header + 4])
    assert "likeliest" not in llm_inside("run", "-m", tiny, "-n", 3, "--logprobs", 0, "x").stderr.decode()
    both = llm_inside("run", "-m", tiny, "-t", 0, "-n", 3, "--logprobs", 0, "-N", 2, "hello")
    assert "answer 1:" in both.stderr.decode()
    assert both.stdout == plain.stdout + b"---\n" + plain.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--mirostat", "1"), "mirostat must be 0 or 2, not 1 (version 1"),
        (("--samplers", "top_k;beam"), "samplers has no 'beam'; there are penalties"),
        (("--logit-bias", "abc"), "ID=X or TEXT=X"),
        (("--logit-bias", "xyzxyz=1"), "'xyzxyz' is 6 tokens"),
        (("--logit-bias", "99999=1"), "there is no token 99999"),
        (("--typical-p", "2"), "typical_p must be between 0 and 1"),
        (("--dry-base", "0.5"), "dry_base must be between 1"),
        (("--dry-sequence-breaker", ""), "dry_sequence_breakers must be"),
        (("-N", "0"), "-N"),
        (("--logprobs", "-1"), "--logprobs"),
    ],
)
def test_wrong_values_are_usage_errors(
    llm_inside: Run, tiny: Path, flags: tuple[str, ...], message: str
) -> None:
    assert message in failed(llm_inside("run", "-m", tiny, *flags, "hi"), 2)


def test_every_sampling_flag_reaches_the_sampler() -> None:
    given = {
        "typical_p": 0.9, "top_n_sigma": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.2,
        "presence_penalty": 0.1, "frequency_penalty": 0.2, "dry_multiplier": 0.8, "dry_base": 2.0,
        "dry_allowed_length": 3, "dry_penalty_last_n": 99, "dynatemp_range": 0.3, "dynatemp_exp": 2.0,
        "mirostat": 2, "mirostat_lr": 0.2, "mirostat_ent": 4.0,
    }  # fmt: skip
    params = GenerationOptions(
        **given,
        logit_bias=["12=-5", " the=2", "13=-inf"],
        dry_sequence_breakers=[r"\n", r"a\tb", r"\\n", "ü"],
        samplers="top_k;temp",
    ).sampling()
    assert {name: getattr(params, name) for name in given} == given
    assert params.logit_bias == ((12, -5.0), (" the", 2.0), (13, -math.inf))
    assert params.dry_sequence_breakers == ("\n", "a\tb", r"\n", "ü")
    assert params.samplers == ("top_k", "temperature")
    assert GenerationOptions(dry_sequence_breakers=["none"]).sampling().dry_sequence_breakers == ()
    assert GenerationOptions().sampling() == SamplingParams()


def test_flags_change_the_answer(llm_inside: Run, tiny: Path) -> None:
    flags = ("run", "-m", tiny, "-t", 0, "-n", 20)
    plain = llm_inside(*flags, "hello").stdout
    most = max((c for c in plain.decode() if not c.isspace() and not c.isdigit()), key=plain.decode().count)
    banned = llm_inside(*flags, "--logit-bias", f"{most}=-inf", "hello").stdout.decode()
    assert most in plain.decode()
    assert most not in banned
    assert llm_inside(*flags, "--presence-penalty", 50, "--repeat-last-n", -1, "hello").stdout != plain
    hot = ("run", "-m", tiny, *HOT)
    assert (
        llm_inside(*hot, "--top-n-sigma", "1e-6", "hello").stdout == llm_inside(*hot, "-t", 0, "hello").stdout
    )


# ---- in steps


@pytest.fixture
def model(tiny: Path):
    with load_model(tiny, LoadOptions(device="reference")) as loaded:
        yield loaded


def test_an_interrupt_keeps_what_there_is(model, capsys, monkeypatch) -> None:
    seen = []

    def interrupt(answers) -> None:
        seen.append(len(answers[0].text))
        if len(seen) == 8:
            raise KeyboardInterrupt

    ids = model.encode("hello")
    answers = generate_answers(model, ids, SamplingParams(temperature=0, max_tokens=50), 2, interrupt)
    assert {answer.reply().finish_reason for answer in answers} == {INTERRUPTED}
    assert len(answers[0].text) >= 4
    assert not model.engine._scheduler.running

    pieces = itertools.count()
    write = terminal.ModelText.write

    def write_some(self, piece: str) -> None:
        write(self, piece)
        if next(pieces) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(terminal.ModelText, "write", write_some)
    options = GenerationOptions(output=TextOrJson.text)
    with pytest.raises(typer.Exit) as end:
        write_answers(model, "tiny", ids, options, SamplingParams(temperature=0, max_tokens=50), 3)
    assert end.value.exit_code == 130
    shown = capsys.readouterr().out.split("\n---\n")  # what there is of all three, which ran side by side
    assert shown[0] == answers[0].text[:4]
    assert [len(text.rstrip("\n")) for text in shown] == [4, 3, 3]


def test_an_answer_that_repeats_itself_is_stopped(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "long.gguf", context=1024)
    with load_model(path, LoadOptions(device="reference")) as loaded:
        (again,) = loaded.tokenizer.encode("a")
        params = SamplingParams(temperature=0, logit_bias={again: 1e20})
        (answer,) = generate_answers(loaded, loaded.encode("x"), params, 1, lambda answers: None)
    assert set(answer.text) == {"a"}
    assert answer.reply().finish_reason == LOOP
    assert 500 <= len(answer.text) < 1000
