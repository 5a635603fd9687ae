"""The one error that every file reader in this package raises."""


class DamagedFile(ValueError):
    """A model file is damaged, truncated, inconsistent or of a kind that is not supported.

    The message is one line, names the file or tensor, and says what is wrong with it.
    """
