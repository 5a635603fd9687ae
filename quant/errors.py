"""The errors of `quant`: of files, of quantisers, and of kukri's own folder."""

from __future__ import annotations

from .. import KukriError


class DamagedFile(KukriError, ValueError):
    """A model file is damaged, truncated, inconsistent or of a kind that is not supported.

    The message is one line, names the file or tensor, and says what is wrong with it.
    """


class UnsupportedModel(DamagedFile):
    """The file is sound, but kukri cannot run the model that it describes; the message lists what it can."""


class NonFinite(KukriError, ValueError):
    """A weight to be quantised is NaN or infinite. Callers that know the tensor's name put it in front."""


class NoHome(KukriError, OSError):
    """There is no folder for kukri's files, or other users could write to it. The message is one line."""
