"""`llm run --beams`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from kukri.cli.console.options import TextOrJson
from kukri.cli.generation.options import GenerationOptions
from kukri.cli.run.beams import MOST_BEAMS, write_beams
from kukri.runtime.engine.sampling import beam_search
from kukri.runtime.engine.sampling.beam_search import BeamParams
from kukri.runtime.engine.sampling.params import SamplingParams
from kukri.runtime.model.loading import load_model
from kukri.runtime.model.options import LoadOptions

from ...running import Run, failed


def test_the_best_answers_come_first(llm_inside: Run, tiny: Path) -> None:
    flags = ("run", "-m", tiny, "-n", 9, "--beams", 4, "--length-penalty", "0.5")
    one, three = llm_inside(*flags, "hello"), llm_inside(*flags, "-N", 3, "hello")
    assert one.returncode == three.returncode == 0, three.stderr.decode()
    best = json.loads(llm_inside(*flags, "-o", "json", "hello").stdout)
    told = json.loads(llm_inside(*flags, "-N", 3, "-o", "json", "hello").stdout)
    assert best["text"] == told[0]["text"]
    assert one.stdout.decode() == best["text"] + "\n"
    assert three.stdout.decode() == "---\n".join(each["text"] + "\n" for each in told)
    assert three.stderr.decode().count("cut after 9 tokens") == 3
    scores = [each["score"] for each in told]
    assert scores == sorted(scores, reverse=True)
    for each in told:
        assert each["finish_reason"] == "length"
        assert each["stats"]["new_tokens"] == 9
        assert each["score"] == pytest.approx(each["logprob"] / 3, abs=1e-5)
    with load_model(tiny, LoadOptions(device="cpu")) as model:
        ids = model.encode_chat("hello")
        answers = model.beams(ids, 4, length_penalty=0.5, max_tokens=9)
    assert [answer.text for answer in answers[:3]] == [each["text"] for each in told]


def test_one_beam_is_greedy(llm_inside: Run, tiny: Path) -> None:
    greedy = llm_inside("run", "-m", tiny, "-n", 9, "-t", 0, "hello")
    assert llm_inside("run", "-m", tiny, "-n", 9, "--beams", 1, "hello").stdout == greedy.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--beams", "0"), "--beams"),
        (("--beams", "3", "-N", "4"), "-N 4 asks for more answers than the 3 of --beams"),
        (("--beams", "3", "--early-stopping", "maybe"), "--early-stopping"),
        (("--beams", "3", "--length-penalty", "nan"), "length_penalty must be a number"),
        (("--beams", "3", "-n", "0"), "max_tokens of 1 or more"),
        (("--beams", "3", "--logprobs", "0"), "log probabilities of whole answers"),
        (("--beams", "3", "--mirostat", "2"), "without DRY and Mirostat"),
    ],
)
def test_what_a_search_cannot_have_is_a_usage_error(
    llm_inside: Run, tiny: Path, flags: tuple[str, ...], message: str
) -> None:
    assert message in failed(llm_inside("run", "-m", tiny, *flags, "hi"), 2)


def test_an_interrupt_keeps_the_best_there_is(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with load_model(tiny, LoadOptions(device="reference")) as model:
        step, left = model.engine.machine.step, [8]

        def interrupted(batch, table):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return step(batch, table)

        model.engine.machine.step = interrupted
        options = GenerationOptions(output=TextOrJson.text)
        ids, params = model.encode("hello"), SamplingParams(max_tokens=50)
        with pytest.raises(typer.Exit) as end:
            write_beams(model, "tiny", ids, options, params, BeamParams(3), 2)
        assert end.value.exit_code == 130
        assert not model.engine._scheduler.running
    shown = capsys.readouterr()
    assert [len(text.rstrip("\n")) for text in shown.out.split("\n---\n")] == [7, 7]
    assert shown.err.count("interrupted") == 2


def test_the_most_beams_are_those_of_the_engine() -> None:
    assert MOST_BEAMS == beam_search.MOST_BEAMS
