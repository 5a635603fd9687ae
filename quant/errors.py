"""The errors of `quant`: of files, of quantisers, and of kukri's own folder."""


class DamagedFile(ValueError):
    """A model file is damaged, truncated, inconsistent or of an unsupported kind.

    The message is one line, names the file or tensor, and says what is wrong with it.
    """


class UnsupportedModel(DamagedFile):
    """The file is sound, but kukri cannot run the model that it describes; the message lists what it can."""


class NonFinite(ValueError):
    """A weight to be quantised is NaN or infinite. Callers that know the tensor's name put it in front."""


class NoHome(OSError):
    """There is no folder for kukri's files, or other users could write to it. The message is one line."""
