"""GET /inspect: the page that draws inspections of this server's models."""

from __future__ import annotations

from functools import lru_cache

from ...inspection.page.document import document, policy
from ..call import Call
from ..endpoint import Plain
from ..plain import Nothing


async def page(call: Call, request: Nothing) -> Plain:
    """A page to see a model think."""
    body, allowed = _page()
    headers = {"content-security-policy": f"{allowed}; connect-src 'self'; frame-ancestors 'none'"}
    return Plain(body, "text/html; charset=utf-8", headers)


@lru_cache(maxsize=1)
def _page() -> tuple[bytes, str]:
    """The page and its content security policy."""
    body = document()
    return body, policy(body)
