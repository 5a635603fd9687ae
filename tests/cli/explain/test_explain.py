"""`llm explain`: every view on terminals of all kinds, and the same in JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

import kukri
from kukri.cli.explain.page import Page, percent
from kukri.cli.explain.subject import Choices, Subject
from kukri.cli.explain.views import VIEWS, chosen_views, draw, facts_of
from kukri.runtime.engine.sampling.params import SamplingParams

from ...running import Run, failed
from ...runtime.inspection.test_document import inlined_data

TEXT = "the inn and the tin"


@pytest.fixture(scope="module")
def facts(tiny: Path) -> dict:
    """The facts of all views of the tiny model."""
    with kukri.load(tiny, device="cpu", threads=1) as model:
        params = SamplingParams(temperature=0.7, seed=1, max_tokens=6)
        choices = Choices(top=6, layer=None, head=None, position=2, beams=2, max_tokens=5)
        ids = model.encode_chat(TEXT)
        return facts_of(Subject(model, "tiny", TEXT, ids, params, choices, VIEWS), VIEWS)


def lines(page: Page) -> list[str]:
    return "".join(text for text, _ in page.pieces).splitlines()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_fits(facts: dict, view: str, width: int, plain: bool) -> None:
    """Nothing is wider than the terminal or blank, and nothing drawn is beyond ASCII on a dumb one."""
    page = Page(width, plain)
    draw(page, {view: facts[view]})
    shown = lines(page)
    assert len(shown) > 3
    assert max(map(cell_len, shown)) <= width
    assert not plain or all(line.replace("\ufffd", "").isascii() for line in shown if TEXT not in line)
    assert "\x1b" not in "".join(shown)


def test_numbers_are_those_of_the_facts(facts: dict) -> None:
    page = Page(200, plain=True)
    draw(page, facts)
    text = "\n".join(lines(page))
    for token in facts["probabilities"]["tokens"]:
        row = next(line for line in lines(page) if line.startswith(f"{token['position']:>3} "))
        assert percent(token["probability"]) in text
        assert row
    assert f"{facts['tokens']['text_tokens']} tokens" in text
    for stage in facts["sampling"]["stages"]:
        assert stage["name"] in text
    assert facts["sampling"]["stages"][-1]["kept"] <= facts["sampling"]["stages"][0]["kept"]
    assert facts["sampling"]["position"] == 2
    assert facts["sampling"]["chosen"]["id"] == facts["probabilities"]["tokens"][2]["id"]
    assert len(facts["attention"]["heads"]) == 8
    assert facts["lens"]["cells"][-1][-1][0]["id"] == facts["probabilities"]["behind"]["top"][0]["id"]
    assert facts["cache"]["now"]["bytes"] == 2 * facts["cache"]["now"]["layers"][0]["bytes"]
    assert facts["time"]["new_tokens"] == 6
    assert [end["node"] >= 0 for end in facts["beams"]["ends"]] == [True, True]
    assert facts["embeddings"]["near"][0]["tokens"][0]["cosine"] <= 1


def test_merges_are_shown(facts: dict) -> None:
    page = Page(80, plain=False)
    draw(page, {"tokens": facts["tokens"]})
    assert "t h e → th e → the" in lines(page)
    assert any("<|im_start|>│user│↵" in line.replace("u│s│e│r", "user") for line in lines(page))


def test_colours_and_none(llm_inside: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe, NO_COLOR and a dumb terminal get no escapes; a terminal gets colours."""
    monkeypatch.setenv("COLUMNS", "40")
    command = ("explain", "-m", tiny, "-t", "0", "-n", "3", "--threads", "1", TEXT)
    piped = llm_inside(*command)
    assert piped.returncode == 0, piped.stderr.decode()
    assert b"\x1b" not in piped.stdout
    assert max(map(cell_len, piped.stdout.decode().splitlines())) <= 40
    monkeypatch.setattr("kukri.cli.console.terminal.is_terminal", lambda stream: True)
    monkeypatch.setenv("TERM", "xterm")
    painted = llm_inside(*command).stdout
    assert b"\x1b[48;5;" in painted
    monkeypatch.setenv("NO_COLOR", "1")
    assert llm_inside(*command).stdout == piped.stdout
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    dumb = llm_inside(*command).stdout
    assert b"\x1b" not in dumb
    assert dumb.replace("\ufffd".encode(), b"").isascii()


def test_json(llm_inside: Run, tiny: Path) -> None:
    """One object with the chosen views, and nothing else on stdout."""
    done = llm_inside(
        *("explain", "-m", tiny, "-n", "3", "--threads", "1", "--seed", "1", "-o", "json"),
        *("--view", "lens,probabilities", TEXT),
    )
    data = json.loads(done.stdout)
    assert list(data) == ["model", "text", "probabilities", "lens"]
    assert len(data["probabilities"]["tokens"]) == 3
    assert len(data["lens"]["cells"]) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--view", "tokens,dreams"), "there is no view dreams"),
        (("--view", "attention", "--layer", "2"), "the layers with attention are 0, 1"),
        (("--view", "attention", "--head", "4"), "heads are numbered from 0 to 3"),
        (("--view", "sampling", "--position", "9"), "the answer has 3 tokens"),
    ],
)
def test_usage_errors(llm_inside: Run, tiny: Path, arguments: tuple[str, ...], words: str) -> None:
    done = llm_inside("explain", "-m", tiny, "-n", "3", "--threads", "1", *arguments, TEXT)
    assert words in failed(done, 2)


def test_views() -> None:
    assert chosen_views(None) == ("tokens", "probabilities")
    assert chosen_views(["time,tokens", "beams"]) == ("tokens", "beams", "time")
    assert chosen_views(["all"]) == VIEWS


def test_the_walk_shows_commands_that_there_are() -> None:
    """docs/how-inference-works.md: each view but none twice, by the names that the command knows."""
    walk = (Path(kukri.__file__).parent / "docs/how-inference-works.md").read_text("utf-8")
    shown = re.findall(r"^\$ llm explain .*--view (\S+)", walk, re.MULTILINE)
    assert sorted(shown) == sorted(VIEWS)


def test_a_page_has_what_the_views_have(llm_inside: Run, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    flags = ("-t", "0", "-n", "3", "--device", "cpu", "--html", path, "-o", "json", "--view", "all")
    done = llm_inside("explain", "-m", tiny, *flags, "</script> the")
    assert done.returncode == 0, done.stderr
    assert f"{path}: a page of" in done.stderr.decode()
    told, data = json.loads(done.stdout), inlined_data(path.read_text("utf-8"))
    seen, tokens = data["inspection"], told["probabilities"]["tokens"]
    assert [token["id"] for token in seen["tokens"][seen["n_prompt"] :]] == [t["id"] for t in tokens]
    nodes = [[each["id"] for each in found["beams"]["nodes"]] for found in (data, told)]
    assert nodes[0] == nodes[1]
    assert len(seen["attention"]) == 2
    assert len(seen["attention"][0]["rows"]) == len(seen["tokens"])
    assert data["facts"]["sizes"]["attention"] == told["cache"]["attention"]
    missing = llm_inside("explain", "-m", tiny, "-n", "1", "--html", tmp_path / "no" / "page.html", "a")
    assert missing.returncode == 1
    long = llm_inside("explain", "-m", tiny, "-n", "1", "-c", "2000", "--html", path, "a b " * 400)
    assert "holds up to 1024" in failed(long, 2)
