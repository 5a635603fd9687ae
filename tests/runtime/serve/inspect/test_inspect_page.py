"""The page /inspect in a real browser: its views have the values that the server's JSON has."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kukri.runtime.engine.sampling.candidates import Candidates
from kukri.runtime.engine.sampling.steps import Truncation
from kukri.runtime.inspection.attention import AttentionWeights
from kukri.runtime.inspection.heads import head_summaries
from kukri.runtime.inspection.page.document import document
from kukri.tests.tiny_model import LAYERS

from ..browser import Browser, browser
from ..conftest import Served
from ..test_page import in_a_browser

pytestmark = [pytest.mark.slow, in_a_browser]
TEXT = "Hi the in"
COUNT = "return document.querySelectorAll(arguments[0]).length"
FITS = "return document.documentElement.scrollWidth <= innerWidth"
LENS_CELLS = (
    "return [...document.querySelectorAll('#lens tbody tr')]"
    ".map(row => [...row.cells].slice(1).map(cell => cell.textContent))"
)
CONVERSATION = [
    {"role": "user", "content": "France?"},
    {"role": "assistant", "content": "Paris.", "done": True},
    {"role": "user", "content": "And Italy?"},
    {"role": "assistant", "content": "Rome.", "done": True},
]
RIGHT, LEFT, DOWN = "\ue014", "\ue012", "\ue015"


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def shown(tab: Browser, served: Served) -> Browser:
    """The page with an inspection of TEXT and five tokens of an answer."""
    tab.open(served.url + "/inspect")
    tab.until(lambda: tab.texts("#model option") == ["tiny", "silent"])
    tab.type("#prompt", TEXT)
    tab.run("document.querySelector('#most').value = 5; state.sampling.temperature = 0")
    tab.click("#run")
    tab.until(lambda: tab.run("return state.seen && state.distributions.size"))
    return tab


def of_server(served: Served, path: str, **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = served.post(f"/inspect/{path}", {"model": "tiny", **body}).json()
    return found


def test_every_view_has_the_values_of_the_json(shown: Browser, served: Served) -> None:
    tab = shown
    seen = of_server(served, "prompt", prompt=TEXT, max_tokens=5, top=20)
    ids, n_prompt = [token["id"] for token in seen["tokens"]], seen["n_prompt"]
    assert tab.texts("#strip [role=option] small") == [str(id_) for id_ in ids]
    assert tab.run(COUNT, "#strip .new") == 5

    # alternatives of the first token of the answer
    top = of_server(served, "next", ids=ids[:n_prompt], n=200)["top"]
    found = tab.run("return [...document.querySelectorAll('#alternatives tbody tr')].map(e => +e.dataset.id)")
    assert found == [token["id"] for token in top[:40]]
    for shown_text, token in zip(tab.texts("#alternatives .before"), top, strict=False):
        probability = 100 * np.exp(token["logprob"])
        value = 0.005 if shown_text.startswith("<") else float(shown_text.split()[0])
        assert value == pytest.approx(probability, abs=0.051)

    tab.click("#tab-tokens")
    assert tab.texts("#token-table tbody td:nth-child(2)") == [str(id_) for id_ in ids]
    ranks = ["" if token["rank"] is None else str(token["rank"]) for token in seen["tokens"]]
    assert tab.texts("#token-table tbody td:nth-child(6)") == ranks
    assert tab.texts("#merges td")[1] == "·|t|h|e  →  ·|th|e  →  ·|the  →  ·the"

    tab.click("#tab-lens")
    cells = tab.run(LENS_CELLS)
    told = [[cell[0] for cell in row] for row in seen["lens"]["cells"]][::-1]
    assert cells == [[tab.run("return shown(arguments[0])", token) for token in row] for row in told]
    assert tab.run(COUNT, "#norms rect") == LAYERS + 1

    tab.click("#tab-attention")
    tab.until(lambda: tab.run(COUNT, "#heads button") == LAYERS * 4)
    tab.click('[data-layer="1"][data-head="2"]')
    tab.until(lambda: tab.run(COUNT, "#matrix"))
    (layer,) = of_server(served, "attention", ids=ids, layers=[1], heads=[2])["attention"]
    np.testing.assert_allclose(tab.run("return state.matrices.get('1/2')"), layer["weights"][0], atol=1e-3)
    weights = AttentionWeights(1, np.array(layer["weights"]), (2,), tuple(range(len(ids))), 4, 2, 0)
    (summary,) = head_summaries(weights, ids)
    scores = tab.run(
        "return headScores(arguments[0], arguments[1])", layer["weights"][0], [1, *ids[1:-1], ids[1]]
    )
    (other,) = head_summaries(weights, [1, *ids[1:-1], ids[1]])
    assert scores == pytest.approx(
        {name: getattr(other, name) for name in ("previous", "first", "own", "induction")}
    )
    assert tab.run("return percent(arguments[0])", summary.previous) in tab.texts("#matrix-box")[0]
    tab.type("#matrix", LEFT)  # the weight of the token in front of the chosen one
    weight = layer["weights"][0][n_prompt][n_prompt - 1]
    told_weight = tab.texts("#weight")[0]
    assert f"({n_prompt}) looks at" in told_weight
    assert told_weight.endswith(tab.run("return percent(arguments[0])", weight))

    tab.click("#tab-rope")
    tab.until(lambda: tab.run(COUNT, "#dials g"))
    rope = of_server(served, "model")["rope"][0]["inv_freq"]
    angles = tab.run("return [...document.querySelectorAll('#dials g')].map(e => +e.dataset.angle)")
    np.testing.assert_allclose(angles, np.array(rope) * n_prompt, rtol=1e-6)

    tab.click("#tab-map")
    tab.until(lambda: tab.run(COUNT, "#map circle"))
    near = of_server(served, "near", ids=ids, n=5)
    assert tab.run(COUNT, "#map g") == len(near["points"])
    here = next(each for each in near["near"] if each["id"] == ids[n_prompt])
    assert tab.texts("#near tbody td:nth-child(2)") == [str(token["id"]) for token in here["tokens"]]

    tab.click("#tab-beams")
    tab.click("#search")
    tab.until(lambda: tab.run(COUNT, "#tree [data-node]"))
    tree = of_server(served, "beams", ids=ids[:n_prompt], k=3, max_tokens=8)
    assert tab.run(COUNT, "#tree [data-node]") == len(tree["nodes"])
    scores = [float(text.replace(",", "")) for text in tab.texts("#answers tbody td:nth-child(3)")]
    assert scores == pytest.approx([end["score"] for end in tree["ends"]], rel=2e-3)

    tab.click("#tab-memory")
    tab.until(lambda: tab.texts("#memory-table td"))
    sizes = of_server(served, "model")["sizes"]
    tab.run("$('kv').value = 'f16'; $('kv').onchange()")
    wanted = tab.run("return bytes(arguments[0])", 4096 * sizes["kv_per_token"]["f16"])
    assert tab.texts("#memory-table tr:nth-child(2) td")[1] == wanted

    assert (
        f"in each of {LAYERS} layers: {tab.run('return bytes(arguments[0])', seen['cache']['bytes'])}"
        in (tab.texts("#own-cache")[0])
    )
    tab.click("#tab-time")
    assert tab.texts("#time-table tbody td:nth-child(2)")[1] == "4"

    tab.click("#tab-batch")
    tab.until(lambda: tab.run("return state.timeline.told"))
    served.post("/v1/completions", {"model": "tiny", "prompt": "abc", "max_tokens": 9, "temperature": 0})
    tab.until(lambda: tab.run(COUNT, "#timeline [data-kind=decode]"))
    rows = "return [...document.querySelectorAll('#timeline g[data-step]')].map(e => +e.dataset.rows)"
    steps = of_server(served, "timeline")["steps"]
    first = tab.run("return state.timeline.steps[0].number")
    wanted_rows = [part["rows"] for step in steps for part in step["parts"] if step["number"] >= first]
    tab.until(lambda: len(tab.run(rows)) >= len(wanted_rows))  # the page asks for steps now and then
    assert tab.run(rows) == wanted_rows
    assert tab.texts("#problem") == [""]


def test_sliders_keep_what_the_sampler_keeps(shown: Browser, served: Served) -> None:
    ids = [token["id"] for token in shown.run("return state.seen.tokens")]
    top = of_server(served, "next", ids=ids[:5], n=1000)["top"]  # all of the vocabulary
    logits = np.array([token["logprob"] for token in top], np.float32)
    grid = itertools.product((0.05, 0.8, 1.7), (0, 1, 7, 300), (0.0, 0.5, 0.95, 1.0), (0.0, 0.05, 0.4))
    for temperature, top_k, top_p, min_p in grid:
        step = Truncation(top_k, top_p, min_p, temperature)
        kept = step(Candidates(None, logits, float(logits[0]), 0.0, False), ())
        weights = np.exp(np.sort(kept.values.astype(float))[::-1])
        script = "return sampled(arguments[0], arguments[1])"
        sliders = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        found = shown.run(script, top, sliders)
        assert found["kept"] == len(weights), sliders
        np.testing.assert_allclose(found["probabilities"], weights / weights.sum(), rtol=1e-4, atol=1e-12)
    part = shown.run(
        "return sampled(arguments[0], arguments[1])", top[:2], {**sliders, "top_p": 1, "min_p": 0}
    )
    assert not part["complete"]


def test_by_keyboard_and_branching(shown: Browser, served: Served) -> None:
    tab = shown
    at = tab.run("return state.at")
    tab.type("#strip", RIGHT + RIGHT + LEFT)
    assert tab.run("return state.at") == at + 1
    assert tab.run("return document.querySelector('#strip [aria-selected=true]').id") == f"token-{at + 1}"
    tab.type("#tab-next", RIGHT)
    assert tab.run("return document.activeElement.id") == "tab-attention"
    tab.until(lambda: tab.run(COUNT, "#heads button"))
    tab.run("document.querySelector('#heads button').focus()")
    tab.type('[data-layer="0"][data-head="0"]', DOWN + RIGHT)
    assert tab.run("return document.activeElement.dataset") == {"layer": "1", "head": "1"}
    assert "layer 1, head 1" in tab.texts("#tip")[0]

    tab.click("#tab-next")
    ids = tab.run("return state.seen.tokens.map(t => t.id)")
    tab.until(lambda: tab.run("return document.querySelectorAll('#alternatives tbody tr').length == 40"))
    other = tab.run("return +document.querySelector('#alternatives tbody tr:nth-child(3)').dataset.id")
    tab.click("#alternatives tbody tr:nth-child(3) button")
    tab.until(lambda: tab.run("return state.seen.tokens[arguments[0]].id", at + 1) == other)
    branched = tab.run("return state.seen.tokens.map(t => t.id)")
    assert branched[: at + 2] == [*ids[: at + 1], other]
    assert len(branched) == at + 2 + 5
    assert tab.run("return state.at") == at + 1


def test_light_dark_and_narrow(shown: Browser) -> None:
    """With KUKRI_SCREENSHOTS=folder, what it looks like is kept there."""
    tab, backs = shown, {}
    for scheme, width in (("light", 1100), ("dark", 1100), ("light", 500)):
        tab.prefer(scheme)
        tab.resize(width, 800)
        for view in ("next", "attention", "lens", "memory"):
            tab.click(f"#tab-{view}")
            assert tab.run(FITS), (view, width)
        backs[scheme] = tab.run("return getComputedStyle(document.body).backgroundColor")
        if folder := os.environ.get("KUKRI_SCREENSHOTS"):
            tab.click("#tab-next")
            name = "narrow" if width < 700 else scheme
            (Path(folder) / f"inspect-{name}.png").write_bytes(tab.screenshot())
    assert backs["light"] != backs["dark"]
    tab.resize(1100, 800)


def test_a_saved_page(tab: Browser, served: Served, tmp_path: Path) -> None:
    """It shows what it has without a server, and nothing in it runs."""
    seen = of_server(served, "prompt", prompt="</script><script>document.title='bad'</script>", max_tokens=3)
    ids = [token["id"] for token in seen["tokens"]]
    seen |= of_server(served, "attention", ids=ids)
    data = {
        "title": "<b>saved</b>",
        "inspection": seen,
        "facts": of_server(served, "model"),
        "map": of_server(served, "near", ids=ids),
        "beams": of_server(served, "beams", ids=ids, k=2, max_tokens=3),
    }
    path = tmp_path / "page.html"
    path.write_bytes(document(data))
    tab.open(path.as_uri())
    assert tab.texts("#title") == ["<b>saved</b>"]
    assert tab.run("return document.title") == "kukri: inspect"
    assert tab.texts("#strip [role=option] small") == [str(id_) for id_ in ids]
    assert tab.run("return getComputedStyle(document.querySelector('#ask')).display") == "none"
    shown = {"attention": "#heads button", "lens": "#lens td", "rope": "#dials g", "map": "#map circle"}
    shown |= {"time": "#time-table td", "beams": "#tree [data-node]"}
    shown |= {"memory": "#memory-table td", "tokens": "#token-table td"}
    for view, what in shown.items():
        tab.click(f"#tab-{view}")
        assert tab.run(COUNT, what), view
    tab.click("#tab-attention")
    tab.click('[data-layer="1"][data-head="3"]')
    assert tab.run(COUNT, "#matrix") == 1
    assert tab.texts("#problem") == [""]


def test_it_takes_a_conversation_over_from_the_chat(tab: Browser, served: Served) -> None:
    tab.open(served.url + "/")
    tab.until(lambda: tab.texts("#model option"))
    tab.run("current.turns = arguments[0]; save(); draw()", CONVERSATION)
    tab.click("#log .foot a")
    tab.until(lambda: tab.run("return location.pathname") == "/inspect")
    tab.until(lambda: tab.texts("#model option"))
    assert tab.run("return document.querySelector('#prompt').value") == "And Italy?"
    assert "behind 2 earlier messages" in tab.texts("#ask label")[0]
    tab.click("#run")
    tab.until(lambda: tab.run("return state.seen"))
    messages = [{"role": turn["role"], "content": turn["content"]} for turn in CONVERSATION[:3]]
    model = served.pool.entries["tiny"].model
    prompt = model.encode_chat(messages)
    assert tab.run("return state.seen.n_prompt") == len(prompt)
    assert tab.run("return state.seen.tokens.map(t => t.id)")[: len(prompt)] == prompt
