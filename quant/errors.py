"""The errors that file readers raise, and the one of quantisers."""

from __future__ import annotations

from .. import KukriError


class DamagedFile(KukriError, ValueError):
    """A model file is damaged, truncated, inconsistent or of a kind that is not supported.

    The message is one line, names the file or tensor, and says what is wrong with it.
    """


class UnsupportedModel(DamagedFile):
    """The file is sound, but describes a model that kukri cannot run; the message lists what it can."""


class NonFinite(KukriError, ValueError):
    """A weight to be quantised is NaN or infinite. Who knows the tensor's name says it."""
