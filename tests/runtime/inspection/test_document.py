"""The page of one inspection: what is in it can neither end its element nor run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest

from kukri.runtime.inspection.page.document import document, inlined, policy


def inlined_data(page: str) -> Any:
    """The data in a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_data_cannot_leave_its_element() -> None:
    data = {"text": "</script><script>alert(1)</script><!--\u2028 &amp; é </SCRIPT >", "n": [1, None]}
    text = inlined(data)
    assert not re.search("[<>&\u2028]", text)
    assert json.loads(text) == data
    page = document(data).decode()
    assert len(re.findall("(?i)</script", page)) == 2
    assert inlined_data(page) == data
    with pytest.raises(ValueError, match="JSON"):
        inlined({"n": float("nan")})


def test_only_its_own_script_runs_and_nobody_is_asked() -> None:
    page = document({"a": 1}).decode()
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    allowed = re.search(r'http-equiv="content-security-policy" content="([^"]*)"', page)
    assert allowed is not None
    assert "default-src 'none'" in allowed[1]
    assert f"script-src 'sha256-{digest}'" in allowed[1]
    assert "connect-src" not in allowed[1]
    live = document()
    assert policy(live) == allowed[1]
    assert b"http-equiv" not in live
    for text in (page, live.decode()):
        assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?https?:""", text)
        assert "innerHTML" not in text
        assert "/*scripts*/" not in text
        assert len(text) < 128 << 10
