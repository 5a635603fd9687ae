"""What a client is told when a request cannot be answered: one line, a status, and each API's own shape."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .... import KukriError
from ....quant.errors import DamagedFile, UnsupportedModel
from ....tokenizer import TemplateError, TokenizerError
from ...engine.errors import (
    BadLogits,
    CacheFull,
    ConstraintError,
    ContextExceeded,
    ModelClosed,
    QueueFull,
)
from ...model.memory_check import NotEnoughMemory

_log = logging.getLogger(__name__)

RETRY_SECONDS = 2

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Problem(KukriError, Exception):
    """A request that is not answered. `param`: the parameter to blame; `code`: a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})


def busy(message: str, seconds: int = RETRY_SECONDS) -> Problem:
    """503 with the time after which to ask again."""
    return Problem(503, message, code="unavailable", headers={"retry-after": str(seconds)})


def as_problem(error: Exception) -> Problem:
    """What a client is told about an error of the library. One that nobody expects is logged, and its text
    stays here."""
    match error:
        case Problem():
            return error
        case ContextExceeded():
            return Problem(400, str(error), "messages", "context_length_exceeded")
        case QueueFull() | ModelClosed() | NotEnoughMemory() | CacheFull():
            return busy(str(error))
        case ConstraintError():  # of an answer that is being written
            return Problem(400, str(error), "response_format", "invalid_value")
        case BadLogits() | DamagedFile():
            return Problem(500, str(error), code="model_error")
        case TemplateError() | TokenizerError():
            return Problem(400, str(error), "messages", "invalid_prompt")
        case TimeoutError():
            return Problem(504, "the request took longer than this server allows", code="timeout")
    _log.error("an internal error: %s: %s", type(error).__name__, error, exc_info=error)
    return Problem(500, "an internal error; the server's log has more", code="internal_error")


@contextmanager
def about_request(param: str | None = None) -> Iterator[None]:
    """Within the block, a ValueError or TypeError is about what the request says: the library's own checks
    of parameters raise nothing else there."""
    try:
        yield
    except ConstraintError as error:
        raise Problem(400, str(error), "response_format", "invalid_value") from None
    except UnsupportedModel as error:  # the model is there, and cannot do this
        raise Problem(400, str(error), "model", "unsupported_model") from None
    except KukriError:
        raise
    except (ValueError, TypeError) as error:
        raise Problem(400, str(error), param, "invalid_value") from None


def body_of(problem: Problem, path: str) -> dict[str, Any]:
    """The body of an error in the shape of the API that `path` belongs to."""
    if path.startswith("/v1/messages"):
        kind = _ANTHROPIC_TYPES.get(problem.status)
        kind = kind or ("invalid_request_error" if problem.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": problem.message}}
    if path.startswith("/api/"):
        return {"error": problem.message}
    kind = _OPENAI_TYPES.get(problem.status)
    kind = kind or ("invalid_request_error" if problem.status < 500 else "server_error")
    return {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}}
