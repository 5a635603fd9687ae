"""The page at /: what it is made of, and how it works in a real browser where there is one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kukri.tests.runtime.model.scripted import scripted

from .browser import PROGRAMS, Browser, browser
from .conftest import Served, serving
from .test_tools import CALL, TEMPLATE, TOOL

in_a_browser = pytest.mark.skipif(None in PROGRAMS, reason="there is no Chromium with its driver")
ENTER = "\ue007"
NAV_SHOWN = "return getComputedStyle(document.querySelector('nav')).display != 'none'"
LINKS = "return [...document.querySelectorAll('#log .body a')].map(a => a.href)"


@pytest.fixture
def tab() -> Iterator[Browser]:
    with browser() as found:
        yield found


def test_it_is_one_file_that_asks_nobody_else(served: Served) -> None:
    answer = served.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?https?:""", answer.text)
    assert "innerHTML" not in answer.text
    assert len(answer.content) < 64 << 10


@pytest.mark.slow
@in_a_browser
def test_a_conversation(tab: Browser, served: Served, greedy: Callable[[str, int], str]) -> None:
    tab.open(served.url + "/")
    tab.until(lambda: tab.texts("#model option") == ["tiny", "silent"])
    tab.click("#configure")
    tab.type("[name=temperature]", "0")
    tab.type("[name=max_tokens]", "24")
    tab.click("#settings button")
    tab.type("#text", "Hi there" + ENTER)
    tab.until(lambda: tab.texts("#again"))
    assert tab.texts(".turn.user .body") == ["Hi there"]
    wanted = greedy("Hi there", 24)
    letters = re.sub(r"[^A-Za-z0-9]", "", wanted)
    assert re.sub(r"[^A-Za-z0-9]", "", "".join(tab.texts(".turn.assistant .body"))) == letters
    assert "+ 24 tokens" in tab.texts(".foot span")[0]
    tab.click("#again")
    tab.until(lambda: tab.texts("#again"))
    assert len(tab.texts(".turn")) == 2
    tab.open(served.url + "/")  # it is still there
    assert tab.texts("#list .one button:first-child") == ["Hi there"]
    tab.click("#list .one button:first-child")
    assert tab.texts(".turn.user .body") == ["Hi there"]


@pytest.mark.slow
@in_a_browser
def test_stopping(tab: Browser, served: Served) -> None:
    tab.open(served.url + "/")
    tab.until(lambda: tab.texts("#model option"))
    tab.type("#text", "Hi there" + ENTER)
    tab.until(lambda: "".join(tab.texts(".turn.assistant .body")))
    tab.click("#stop")
    tab.until(lambda: tab.texts("#again"))
    served.until_idle()


SAID = (
    "<think>\nHm.\n</think>\n\n# Title\n\n**bold** and `a < b` <img src=x onerror=document.title='bad'>\n\n"
    "- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint('<b>')\n```\n"
    "[link](https://example.org/) [no](javascript:alert(1)) <script>document.title='bad'</script>\n" + CALL
)


@pytest.mark.slow
@in_a_browser
def test_what_a_model_writes_is_shown_and_never_run(tab: Browser) -> None:
    model = scripted(SAID, context=2048, **{"tokenizer.chat_template": TEMPLATE})
    with serving({"m": model}) as served:
        tab.open(served.url + "/")
        tab.until(lambda: tab.texts("#model option"))
        tab.run("settings.tools = arguments[0]; settings.temperature = '0'", json.dumps([TOOL]))
        tab.type("#text", "Show me" + ENTER)
        tab.until(lambda: tab.texts("#again"))
        assert tab.texts(".turn.assistant h2") == ["Title"]
        assert tab.texts(".turn.assistant strong") == ["bold"]
        assert tab.texts(".turn.assistant li") == ["one", "two"]
        assert tab.texts(".turn.assistant td") == ["1", "2"]
        assert tab.texts(".turn.assistant pre code")[0] == "print('<b>')"
        assert "weather(" in tab.texts(".turn.assistant pre code")[-1]
        assert [text.strip() for text in tab.texts("details.think div")] == ["Hm."]
        assert tab.run(LINKS) == ["https://example.org/"]
        assert tab.run("return document.querySelectorAll('#log img, #log script, #log b').length") == 0
        assert "onerror" in "".join(tab.texts(".turn.assistant .body"))
        assert tab.run("return document.title") == "kukri"


SHOWN = [  # a conversation for the pictures
    {"role": "user", "content": "How do I sum the even numbers of a list in Python?"},
    {
        "role": "assistant",
        "thinking": "A generator expression will do.",
        "content": "Pass a **generator expression** to `sum`:\n\n```python\n"
        "total = sum(n for n in numbers if n % 2 == 0)\n```\n\n"
        "| part | what it does |\n|---|---|\n| `n % 2 == 0` | keeps even numbers |\n"
        "| `sum` | adds them up, 0 for none |",
        "usage": {"prompt_tokens": 24, "completion_tokens": 61},
        "seconds": 0.9,
        "done": True,
    },
]


@pytest.mark.slow
@in_a_browser
def test_narrow_light_and_dark(tab: Browser, served: Served) -> None:
    """With KUKRI_SCREENSHOTS=folder, what it looks like is kept there."""
    tab.open(served.url + "/")
    tab.until(lambda: tab.texts("#model option"))
    tab.run("current.turns = arguments[0]; current.title = arguments[1]; save(); draw()", SHOWN, "Sum a list")
    backs = {}
    for scheme, width in (("light", 1100), ("dark", 1100), ("light", 500)):
        tab.prefer(scheme)
        tab.resize(width, 800)
        narrow = width < 700
        assert tab.run("return getComputedStyle(document.querySelector('nav')).display") == (
            "none" if narrow else "flex"
        )
        backs[scheme] = tab.run("return getComputedStyle(document.body).backgroundColor")
        assert tab.run("return document.documentElement.scrollWidth <= innerWidth")
        if folder := os.environ.get("KUKRI_SCREENSHOTS"):
            name = "narrow" if narrow else scheme
            (Path(folder) / f"page-{name}.png").write_bytes(tab.screenshot())
    assert backs["light"] != backs["dark"]
    tab.click("#menu")
    assert tab.run(NAV_SHOWN)
