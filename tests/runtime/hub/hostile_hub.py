"""A Hub that means harm, what lies around the cache that it may write to, and what must hold in any case."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep  # tests replace time.sleep

import pytest

from kukri import KukriError
from kukri.runtime.hub import repository

from .hub_server import COMMIT, Handler, HubServer, git_sha1

REPO = "org/model"
GGUF = b"GGUF" + bytes(range(256)) * 300
FILE = "model-Q4_0.gguf"
TOKEN = "hf_" + "s" * 30

Script = Callable[[Handler], bool]


class Field:
    """A hub, a cache for what comes from it, and files around the cache, none of which may change."""

    def __init__(self, around: Path, hub: HubServer) -> None:
        self.hub = hub
        self.around = around
        self.cache = around / "one" / "two" / "hub"
        for name in ("bashrc", "one/bashrc", "one/two/bashrc", "x", "one/x.gguf"):
            path = around / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"mine: " + name.encode())
        self._before = self.tree()

    @property
    def folder(self) -> Path:
        """The repository's folder in the cache."""
        return self.cache / ("models--" + REPO.replace("/", "--"))

    @property
    def path(self) -> Path:
        """Where FILE belongs."""
        return self.folder / "snapshots" / COMMIT / FILE

    def tree(self) -> dict[str, tuple[int, bytes]]:
        """Mode and contents (a link's target) of everything around the cache, by path."""
        found = {}
        for parent, folders, names in os.walk(self.around):
            if Path(parent, "hub") == self.cache and "hub" in folders:
                folders.remove("hub")
            for name in (*folders, *names):
                path = Path(parent, name)
                mode = path.lstat().st_mode
                content = os.readlink(path).encode() if path.is_symlink() else b""
                found[str(path)] = (mode, path.read_bytes() if stat.S_ISREG(mode) else content)
        return found

    def check(self) -> None:
        """Nothing around the cache has changed; every blob has the digest that its name says; every file of a
        snapshot is a relative link to one."""
        assert self.tree() == self._before
        for blob in self.folder.glob("blobs/*"):
            if blob.suffix != ".incomplete":
                data = blob.read_bytes()
                assert blob.name in (hashlib.sha256(data).hexdigest(), git_sha1(data))
        for parent, _, names in os.walk(self.folder / "snapshots"):
            for name in names:
                path = Path(parent, name)
                assert (path.parent / os.readlink(path)).parent.resolve() == self.folder.resolve() / "blobs"
        refs = [path for path in self.folder.glob("refs/*") if path.read_text() != COMMIT]
        assert not refs

    def pull(self, quant: str | None = None, sha256: str | None = None) -> Path:
        """Download the repository's model; afterwards `check` holds."""
        try:
            return repository.download(REPO, quant, "a model", sha256=sha256)
        finally:
            self.check()

    def refused(self, match: str = "", seconds: float = 25, sha256: str | None = None) -> str:
        """The message, one line, with which the model is refused in bounded time; no file of it is kept."""
        start = time.monotonic()
        with pytest.raises(KukriError, match=match or None) as caught:
            self.pull(sha256=sha256)
        assert time.monotonic() - start < seconds
        message = str(caught.value)
        assert "\n" not in message
        assert len(message) < 1000
        assert TOKEN not in message
        assert not self.path.exists()
        return message


@pytest.fixture
def field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Field]:
    """A Field whose hub has a GGUF file, asked with a token."""
    hub = HubServer({REPO: {FILE: GGUF}})
    hub.start()
    field = Field(tmp_path / "around", hub)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(field.cache))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("KUKRI_HOME", str(tmp_path / "kukri"))
    yield field
    hub.stop()


def of(handler: Handler, method: str, part: str) -> bool:
    """Whether a request has this method and `part` in its path."""
    return handler.command == method and part in handler.path


def endlessly(handler: Handler, data: bytes, pause: float = 0.0) -> None:
    """Send `data` again and again until the other side has enough, or half a minute has gone by."""
    end = time.monotonic() + 30
    handler.close_connection = True
    with suppress(OSError):
        while time.monotonic() < end:
            handler.wfile.write(data)
            handler.wfile.flush()
            sleep(pause)
