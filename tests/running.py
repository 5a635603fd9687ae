"""Commands as people run them: in processes of their own, each test with caches of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kukri
from kukri.cli.main import main
from kukri.quant.jit.kernel_cache import cache_folder

from .tiny_model import write_tiny_model

LLM = (sys.executable, "-P", "-m", "kukri.cli.start")  # without the folder a test runs in
OUT_OF_REACH = "http://127.0.0.1:9"  # the discard port: nobody picks up


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that never stops by itself. Its kernels are compiled, which a command would mention."""
    path = write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with kukri.load(path):
        return path


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a context that takes a while to fill."""
    path = write_tiny_model(tmp_path_factory.mktemp("endless") / "endless.gguf", context=1 << 17)
    with kukri.load(path):
        return path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment with empty caches and a Hub that is out of reach."""
    home = tmp_path / "kukri"
    home.mkdir()
    (home / "kernels").symlink_to(cache_folder().parent)  # all tests share the compiled kernels
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LLM_", "HF_", "KUKRI_", "XDG_"))}
    kept.pop("NO_COLOR", None)
    return kept | {
        "KUKRI_HOME": str(home),
        "KUKRI_CONFIG": str(tmp_path / "config.toml"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": OUT_OF_REACH,
        "HF_TOKEN_PATH": str(tmp_path / "token"),
    }


Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def llm(environment: dict[str, str]) -> Run:
    """llm(*arguments, input=b"", env={}) → the finished process, its streams as bytes."""

    def run(
        *arguments: Any, input: bytes | None = None, env: dict[str, str] | None = None, **more: Any
    ) -> subprocess.CompletedProcess[bytes]:
        if input is None:
            more.setdefault("stdin", subprocess.DEVNULL)
        else:
            more["input"] = input
        return subprocess.run(
            [*LLM, *map(str, arguments)],
            capture_output=True,
            env=environment | (env or {}),
            timeout=120,
            check=False,
            **more,
        )

    return run


@pytest.fixture
def llm_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Run:
    """The same as `llm`, quicker, in this process: for what does not depend on a process of its own."""

    def run(
        *arguments: Any, input: bytes = b"", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        (tmp_path / "stdin").write_bytes(input)
        with monkeypatch.context() as patch, (tmp_path / "stdin").open() as stdin:
            for name in [name for name in os.environ if name.startswith("LLM_")]:
                patch.delenv(name)
            patch.setenv("KUKRI_CONFIG", str(tmp_path / "config.toml"))
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", stdin)
            code = main([str(argument) for argument in arguments])
        written = capfdbinary.readouterr()
        return subprocess.CompletedProcess(arguments, code, written.out, written.err)

    return run


def failed(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    """The one line on stderr of a command that failed with `code` and wrote nothing to stdout."""
    assert done.returncode == code, done.stderr.decode()
    assert done.stdout == b""
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
    return errors[0]
