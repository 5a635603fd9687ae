"""The error that every tokenizer reader raises."""

from __future__ import annotations

from .. import KukriError


class TokenizerError(KukriError, ValueError):
    """A tokenizer is damaged, inconsistent or of a kind that is not supported; or an id is not in it.

    The message is one line.
    """
