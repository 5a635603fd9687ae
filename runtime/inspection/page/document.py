"""The page that draws inspections, as one file: for a server, or with the data of one inspection in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCRIPTS = (
    *("dom", "sampling", "tokens", "next", "lens", "attention", "model", "map", "time", "timeline"),
    "app",  # which begins with what the others have
)
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def document(data: Mapping[str, Any] | None = None) -> bytes:
    """The page. Without `data` it asks the server that it comes from.

    With `data`, which is plain (docs/inspection.md has its form), it shows that and asks nobody; its policy
    forbids everything else, wherever the file is opened.
    """
    texts = {
        "/*styles*/": _read("inspect.css"),
        "/*scripts*/": "\n".join(_read(f"{name}.js") for name in SCRIPTS),
    }
    page = _read("inspect.html")
    for place, text in texts.items():
        page = page.replace(place, text)
    if data is not None:
        place = '<script type="application/json" id="data">'
        page = page.replace(place, place + inlined(data))
        allowed = f'<meta http-equiv="content-security-policy" content="{policy(page.encode())}">'
        page = page.replace("<!--policy-->", allowed)
    return page.replace("<!--policy-->\n", "").encode()


def inlined(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the element that it stands in: `<`, `>` and `&`, which it has in texts only, are
    escaped."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def policy(page: bytes) -> str:
    """A content security policy by which the page's own script runs, by its hash, and nothing else does."""
    script = _SCRIPT.search(page)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1]).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")
