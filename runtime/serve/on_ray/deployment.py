"""The application as deployments of Ray Serve."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from .... import KukriError
from ....quant.extras import how_to_install
from ...hub.resolve import resolve
from ...model.options import LoadOptions
from ..http.options import ServeOptions
from ..pool import DEFAULT_PARALLEL
from .model_file import ModelFile
from .prefix import LENGTH


def ray_app(
    model: str | os.PathLike[str],
    options: ServeOptions | None = None,
    load: LoadOptions | None = None,
    *,
    name: str | None = None,
    replicas: int | tuple[int, int] = 1,
    processors: float = 1,
    cards: float = 0,
    prefix: int = LENGTH,
    fronts: int = 1,
) -> Any:
    """The application of `kukri.runtime.serve.app` as an application of Ray Serve, for `ray.serve.run`.

    - `model`: file, folder or name; each machine has the same one at the same path, or by its name. `name`:
      what requests call it, by default the file's.
    - `replicas`: how many times it is loaded, each with `processors` and `cards` of a machine; (least, most):
      as many as the requests need.
    - `prefix`: requests whose prompts begin with the same so many characters go to the same replica, while
      that does not have more to do than others.
    - `fronts`: processes that take requests and hand them on.

    Raises KukriError without Ray, and as `resolve` and `open_source` do for the model.
    """
    try:
        from ray import serve
        from ray.serve.config import AutoscalingConfig, RequestRouterConfig
    except ImportError:
        raise KukriError(f"ray_app needs Ray Serve: {how_to_install('ray')}") from None
    from .front import Front
    from .replica import Replica
    from .router import PrefixRouter

    options, load = options or ServeOptions(), load or LoadOptions()
    if load.threads is None and not cards:
        load = replace(load, threads=max(1, int(processors)))
    path = resolve(os.fspath(model))
    file = ModelFile.of(os.fspath(model), path, load.adapters)
    parallel = load.parallel or DEFAULT_PARALLEL
    settings: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": processors, "num_gpus": cards},
        "max_ongoing_requests": 2 * parallel,
        "request_router_config": RequestRouterConfig(request_router_class=PrefixRouter),
    }
    if isinstance(replicas, int):
        settings["num_replicas"] = replicas
    else:
        least, most = replicas
        settings["autoscaling_config"] = AutoscalingConfig(
            min_replicas=least, max_replicas=most, target_ongoing_requests=parallel
        )
    called = name or (path.name if path.is_dir() else path.stem)
    answering = serve.deployment(Replica).options(name="kukri", **settings).bind(file, called, options, load)
    front = serve.deployment(Front).options(
        name="front", num_replicas=fronts, max_ongoing_requests=options.max_connections,
        ray_actor_options={"num_cpus": 0},
    )  # fmt: skip
    return front.bind(answering, options, prefix)
