"""The error that every file reader in this package raises, and the one of quantisers."""


class DamagedFile(ValueError):
    """A model file is damaged, truncated, inconsistent or of a kind that is not supported.

    The message is one line, names the file or tensor, and says what is wrong with it.
    """


class NonFinite(ValueError):
    """A weight to be quantised is NaN or infinite. Who knows the tensor's name says it."""
