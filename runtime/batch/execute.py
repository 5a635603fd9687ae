"""Asking a model as the server's endpoints do, without HTTP in between."""

from __future__ import annotations

from contextlib import AsyncExitStack

from ..model.model import Model
from ..model.options import LoadOptions
from ..serve.call import Call, Serving
from ..serve.http.bodies import checked
from ..serve.http.options import ServeOptions
from ..serve.http.problems import as_problem, body_of
from ..serve.metrics import Metrics
from ..serve.pool import ModelPool, sources
from ..serve.routes import PATHS
from .lines import Outcome
from .requests import Request


class Endpoints:
    """The handlers of the paths that a batch takes, for one loaded model, which answers whatever model a
    body names. For one event loop."""

    def __init__(self, model: Model, name: str) -> None:
        model.engine.start()
        pool = ModelPool(sources({name: model}), LoadOptions(), patience=0.0)
        self._serving = Serving(ServeOptions(), pool, Metrics(pool))
        self._paths = {path.path: path for path in PATHS if path.method == "POST"}

    async def __call__(self, request: Request) -> Outcome:
        """What the endpoint answers; errors become the status and the body that a client would get."""
        body = {name: value for name, value in request.body.items() if name != "model"}
        try:
            path = self._paths[request.url]
            async with AsyncExitStack() as stack:
                call = Call(self._serving, request.url, body, stack)
                answered = await path.handler(call, checked(path.schema, body))
        except Exception as error:  # noqa: BLE001 - one row's error, whatever it is, does not stop the others
            problem = as_problem(error)
            return Outcome(request, problem.status, body_of(problem, request.url))
        return Outcome(request, 200, answered)
