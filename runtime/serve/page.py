"""GET /: the page of the server, one file without anything from another host."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from pathlib import Path

from .call import Call
from .endpoint import Plain
from .plain import Nothing


async def page(call: Call, request: Nothing) -> Plain:
    """The chat page."""
    body, policy = _page()
    return Plain(body, "text/html; charset=utf-8", {"content-security-policy": policy})


@lru_cache(maxsize=1)
def _page() -> tuple[bytes, str]:
    """The page and its content security policy: its own script runs, by hash, and nothing else does; it may
    ask this server and nobody else."""
    body = Path(__file__).with_name("page.html").read_bytes()
    script = re.search(rb"<script>(.*?)</script>", body, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1]).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return body, policy
