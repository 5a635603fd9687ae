"""The errors between a model's name and its files on disk."""

from __future__ import annotations

from ... import KukriError


class ModelNotFound(KukriError, LookupError):
    """No file, folder, short name or Hub repository has this name, or the Hub refuses access to it."""


class Unreachable(ModelNotFound):
    """The model is not on disk, and the Hub or the package index that has it cannot be reached."""


class StoreError(KukriError, RuntimeError):
    """The model exists but cannot be stored: a full or read-only disk, or a download that broke off or
    does not have the size or checksum that it should have."""
