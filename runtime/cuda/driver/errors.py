"""What can go wrong with a card; without anything that takes time to import."""

from __future__ import annotations

from .... import KukriError


class CudaError(KukriError, RuntimeError):
    """The driver did not do what it was asked for."""


class CudaUnavailable(CudaError):
    """There is no card that could be used, or nothing to drive it with."""


class NoCard(CudaUnavailable):
    """There is none at all."""


class CudaOutOfMemory(CudaError):
    """The card's memory does not hold what was asked for."""
