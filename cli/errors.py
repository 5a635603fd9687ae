"""What goes wrong on the way from a model's name to its files."""

from __future__ import annotations


class ModelNotFound(LookupError):
    """No such file, name or repository, or one that cannot be reached and is not on disk."""


class Unreachable(ModelNotFound):
    """The place that would have the model cannot be reached."""


class StoreError(RuntimeError):
    """A model exists but could not be stored: no room, a broken or false download, a read-only disk."""
