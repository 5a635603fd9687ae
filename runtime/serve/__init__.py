"""HTTP: an ASGI application over loaded models, with the APIs that clients know. Others can mount it.

    application = kukri.runtime.serve.app(["smollm2.gguf"])

Nothing imports this room but who serves: its packages take a while to import.
"""

from .application import app
from .http.options import ServeOptions
from .on_ray.deployment import ray_app

__all__ = ["ServeOptions", "app", "ray_app"]
