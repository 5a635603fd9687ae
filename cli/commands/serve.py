"""`llm serve`: the HTTP server."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...runtime.hub.resolve import resolve
from ..console import terminal
from ..console.completion import model_names
from ..console.options import (
    DEFAULT_MODEL,
    MAX_CONTEXT,
    CpuMoe,
    Deterministic,
    Device,
    DeviceFlag,
    Devices,
    GpuLayers,
    KvType,
    KvTypeFlag,
    NCpuMoe,
    Speculate,
    SplitMode,
    SplitModeFlag,
    Threads,
    WeightCache,
    cpu_moe_layers,
    flag,
    load_options,
    with_options,
)
from ..generation.adapters import AdapterOptions
from ..generation.caching import AnswerCacheOptions
from ..generation.routing import RouteOptions
from ..settings.model import ModelsOption, named_by_user

if TYPE_CHECKING:
    from ...runtime.model.options import LoadOptions
    from ...runtime.routing.policy import Policy
    from ...runtime.serve.http.options import ServeOptions
    from ...runtime.serve.pool import AnyModel

EXIT_INTERRUPTED = 130
SWITCH_SECONDS = 0.001  # between threads: the engine's shall not keep the event loop waiting for long


@dataclass(frozen=True)
class ServeFlags(AdapterOptions, AnswerCacheOptions, RouteOptions):
    """The flags of `llm serve`."""

    host: Annotated[
        str,
        flag(
            "--host", metavar="ADDRESS", help="Address to listen on; others than this machine's need a key."
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, flag("--port", metavar="N", min=0, max=65535, help="Port to listen on; 0: any that is free.")
    ] = 8080
    parallel: Annotated[
        int | None,
        flag(
            "--parallel", metavar="N", min=1, max=1024, help="Answers written at the same time; default: 16."
        ),
    ] = None
    context: Annotated[
        int | None,
        flag(
            "-c", "--ctx", "--context", metavar="N", min=1, max=MAX_CONTEXT, help="Tokens of a conversation."
        ),
    ] = None
    api_key: Annotated[
        list[str] | None,
        flag("--api-key", metavar="KEY", help="A key that requests must have; may be given several times."),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        flag("--allow-host", metavar="NAME", help="A name of this server beside localhost; *: any."),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        flag("--allow-origin", metavar="URL", help="Web pages that may ask, as https://example.org; *: any."),
    ] = None
    max_prompt: Annotated[
        int | None,
        flag("--max-prompt", metavar="N", min=1, help="Tokens of a prompt; default: the context's."),
    ] = None
    max_inspect: Annotated[
        int, flag("--max-inspect", metavar="N", min=0, help="Tokens that the page inspects; 0: none.")
    ] = 512
    max_body: Annotated[
        int, flag("--max-body", metavar="BYTES", min=1024, help="Bytes of a request's body.")
    ] = 8 << 20
    max_connections: Annotated[
        int, flag("--max-connections", metavar="N", min=1, help="Connections open at a time.")
    ] = 1024
    request_timeout: Annotated[
        float, flag("--request-timeout", metavar="SECONDS", min=0.001, help="For a whole answer.")
    ] = 3600.0
    stream_interval: Annotated[
        float,
        flag(
            "--stream-interval", metavar="MS", min=0, max=10_000,
            help="Gather what a stream brings for so long where two tokens and more come in it; 0: never.",
        ),
    ] = 30.0  # fmt: skip
    memory: Annotated[
        str | None,
        flag(
            "--memory", metavar="SIZE", help="For the files of loaded models together, as 24G; default: all."
        ),
    ] = None
    kv_type: KvTypeFlag = KvType.auto
    threads: Threads = None
    device: DeviceFlag = Device.auto
    gpu_layers: GpuLayers = None
    devices: Devices = None
    split_mode: SplitModeFlag = SplitMode.auto
    cpu_moe: CpuMoe = False
    n_cpu_moe: NCpuMoe = None
    weight_cache: WeightCache = 0
    speculate: Annotated[
        Speculate,
        flag("--speculate", help="Look likely tokens up in prompt and answer, and compute them along."),
    ] = Speculate.auto
    deterministic: Deterministic = False

    def serving(self) -> ServeOptions:
        """The limits of the application. A usage error for wrong ones."""
        from ...runtime.serve.http.options import ServeOptions, is_loopback

        if not is_loopback(self.host) and not self.api_key:
            raise typer.BadParameter(
                f"--host {self.host} is reached from other machines: it needs --api-key (or LLM_API_KEY)"
            )
        try:
            return ServeOptions(
                api_keys=tuple(self.api_key or ()),
                hosts=(self.host, *(self.allow_host or ())),
                origins=tuple(self.allow_origin or ()),
                max_prompt=self.max_prompt,
                max_inspect=self.max_inspect,
                max_body=self.max_body,
                max_connections=self.max_connections,
                request_seconds=self.request_timeout,
                part_seconds=self.stream_interval / 1000,
                memory=None if self.memory is None else size(self.memory),
            )
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None

    def loading(self) -> LoadOptions:
        return load_options(
            self.devices,
            device=self.device.value,
            context=self.context,
            threads=self.threads,
            kv_type=self.kv_type.value,
            gpu_layers=self.gpu_layers,
            split_mode=self.split_mode.value,
            cpu_moe=cpu_moe_layers(self.cpu_moe, self.n_cpu_moe),
            weight_cache=self.weight_cache << 20,
            parallel=self.parallel,
            speculate=self.speculate.value,
            deterministic=self.deterministic,
            adapters=self.adapters,
        )


@with_options
def serve(
    options: ServeFlags,
    ctx: typer.Context,
    more: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL…",
            show_default=False,
            help="Files, folders, short names, or org/repo[:quant].",
            autocompletion=model_names,
        ),
    ] = None,
    models: ModelsOption = None,
) -> None:
    """Answer requests over HTTP, as OpenAI's, Anthropic's and Ollama's servers do.

    The first model is loaded at once, others when they are first asked for. Ctrl-C or SIGTERM ends the
    server when the answers that are being written are complete, a second one at once.
    """
    from ..console.progress import Progress

    limits = options.serving()
    routed, loading = options.route_names, options.loading()
    if (more or routed) and not named_by_user(ctx, "models"):
        models = None  # a default model is not one more
    names = [*(models or []), *(more or [])] or ([] if routed else [DEFAULT_MODEL])
    if loading.adapters and len(names) + 2 * bool(routed) > 1:
        raise typer.BadParameter("adapters are for one model, so that no second one can be served")
    cache = options.open_cache()
    paths = {name: resolve(name, Progress) for name in names}
    found: dict[str, AnyModel] = {} if routed is None else _routed(routed, options.route_policy)
    found.update(_named(paths))
    with terminal.status("starting …"):
        from ...runtime.serve.application import app
        from ...runtime.serve.http.server import Server, listen

        listening = listen(options.host, options.port)
        application = app(found, limits, loading, answers=cache)
    sys.setswitchinterval(SWITCH_SECONDS)
    server = Server(application, limits, _draining)
    terminal.note(f"listening on {_address(options.host, listening.getsockname()[1])} – {', '.join(found)}")
    try:
        asyncio.run(server.serve([listening]))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    if server.signal == signal.SIGINT:
        sys.exit(EXIT_INTERRUPTED)


def _routed(names: tuple[str, str], policy: Policy) -> dict[str, AnyModel]:
    """Both models of --route, under a name that has those of both."""
    from ...runtime.routing.policy import Route
    from ..console.progress import Progress

    small, large = _named({name: resolve(name, Progress) for name in names}).items()
    return {f"{small[0]}+{large[0]}": Route(small[1], large[1], policy)}


def _named(paths: dict[str, Path]) -> dict[str, Path]:
    """The models by the names that requests have for them: short names as they are, files without folder and
    ending. A usage error if two are the same."""
    found: dict[str, Path] = {}
    for name, path in paths.items():
        is_path = Path(name) == path or Path(name).expanduser() == path
        called = (path.name if path.is_dir() else path.stem) if is_path else name
        if called in found:
            raise typer.BadParameter(f"two models are called {called}")
        found[called] = path
    return found


def size(text: str) -> int:
    """The bytes that a size such as 24G, 512M or 1000 says. A usage error for another text."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    word = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = units.get(word[-1:], 1)
    try:
        found = int(float(word[:-1] if unit > 1 else word) * unit)
    except (ValueError, OverflowError):
        found = 0
    if found < 1:
        raise typer.BadParameter(f"{text!r} is no size, such as 24G or 512M", param_hint="--memory")
    return found


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host and "[" not in host else f"http://{host}:{port}"


def _draining(n: int) -> None:
    if n:
        terminal.note(f"finishing {n} answer{'' if n == 1 else 's'}; a second signal stops at once")
