"""The ASGI application: all paths, behind the guard. It can be served by itself or mounted in another one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..model.model import Model
from ..model.options import LoadOptions
from ..response_cache.cache import ResponseCache
from .call import Serving
from .endpoint import Endpoint
from .http.guard import Guard
from .http.options import ServeOptions
from .http.problems import Problem, body_of
from .http.sending import encode
from .metrics import Metrics
from .pool import AnyModel, ModelPool, sources
from .routes import PATHS


def app(
    models: Mapping[str, AnyModel] | Iterable[str | Path | Model],
    options: ServeOptions | None = None,
    load: LoadOptions | None = None,
    *,
    preload: bool = True,
    answers: ResponseCache | None = None,
) -> Starlette:
    """An application that serves `models`, by name or by the names of their files: files or folders, loaded
    with `load` when first asked for, loaded models, which stay their owner's, or a Route of two. The models
    that it loads take `answers` from there that would be the same again, and keep them there.

    Its lifespan loads the first one at once if `preload` is set, and closes what was loaded; mounted, where
    there is no lifespan, call `application.state.pool.close()`. Raises FileNotFoundError for a model that is
    not there, and ValueError for none.
    """
    options = options or ServeOptions()
    pool = ModelPool(sources(models), load or LoadOptions(), options.load_patience, options.memory)
    if answers is not None:
        pool.prepare = answers.serve
    serving = Serving(options, pool, Metrics(pool))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if preload:
            pool.begin(pool.find(None))
        yield
        await pool.close()

    paths = frozenset(path.path for path in PATHS)
    application = Starlette(
        routes=[
            Route(path.path, Endpoint(serving, path.schema, path.handler), methods=[path.method])
            for path in PATHS
        ],
        middleware=[Middleware(Guard, options=options, metrics=serving.metrics, paths=paths)],
        exception_handlers={HTTPException: _refused},
        lifespan=lifespan,
    )
    application.router.redirect_slashes = False
    application.state.pool, application.state.serving = pool, serving
    return application


async def _refused(request: Request, error: Exception) -> Response:
    """A path or method that there is none of, in the shape of the API that was meant."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    texts = {404: f"there is no {path:.100}", 405: f"{path:.100} does not take {request.method}"}
    problem = Problem(error.status_code, texts.get(error.status_code, error.detail), code="not_found")
    headers = dict(error.headers or {})
    return Response(encode(body_of(problem, path)), error.status_code, headers, media_type="application/json")
