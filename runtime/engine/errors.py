"""The errors of generation, whichever machine runs the model."""

from __future__ import annotations

from ... import KukriError


class ContextExceeded(KukriError, ValueError):
    """The prompt has more tokens than the context holds."""


class BadLogits(KukriError, ArithmeticError):
    """The logits hold NaN or +inf, or nothing above -inf: there is no distribution to draw from."""


class CacheFull(KukriError, RuntimeError):
    """No free page is left in the pool of the KV cache."""


class QueueFull(KukriError, RuntimeError):
    """As many requests wait for the model as its queue holds."""


class StaleGeneration(KukriError, RuntimeError):
    """Another call has taken the KV cache over between two parts of a prompt's logits."""


class ModelClosed(KukriError, RuntimeError):
    """The model was closed: its threads and its memory are gone."""


class ConstraintError(KukriError, ValueError):
    """The structure that an answer must have is not supported, cannot be met, or takes too much work."""
