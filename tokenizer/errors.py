"""The error that every tokenizer reader raises, and tokens in messages."""

from __future__ import annotations

from collections.abc import Sequence

from .. import KukriError


class TokenizerError(KukriError, ValueError):
    """A tokenizer is damaged, inconsistent or of a kind that is not supported; or an id is not in it.

    The message is one line.
    """


def listed(tokens: Sequence[str]) -> str:
    """The first of `tokens` for a message, on one line, and how many more there are."""
    shown = [text if len(text) <= 40 else text[:39] + "…" for text in tokens[:6]]
    more = f" and {len(tokens) - 6} more" if len(tokens) > 6 else ""
    return ", ".join(text if text.isprintable() and text.strip() else ascii(text) for text in shown) + more
