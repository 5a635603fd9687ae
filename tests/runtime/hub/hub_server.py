"""A small stand-in for the Hugging Face Hub on the loopback interface, with faults on demand."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".gguf", ".safetensors")  # files whose ETag is their SHA-256; those of others are git's SHA-1


def git_sha1(data: bytes) -> str:
    """Git's name of a file with these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass
class Request:
    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class HubServer:
    """`repos`: "org/name" → path → bytes. Faults: see the fields; `requests` records what was asked."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)  # 401 without the token "secret"
    gated: set[str] = field(default_factory=set)  # 403 for everybody
    drops: list[int] = field(default_factory=list)  # bytes after which the next transfers break off
    false_content: dict[str, bytes] = field(default_factory=dict)  # path → what is sent instead
    no_ranges: bool = False
    hold: threading.Event | None = None  # transfers stop in the middle until it is set
    pace: float = 0.0  # seconds that each 64 kB of a transfer take
    statuses: list[int] = field(default_factory=list)  # what the next transfers are answered with instead
    api: bytes | None = None  # what is answered about every repository instead
    headers: dict[str, str] = field(default_factory=dict)  # of files, instead of the right ones
    endless: bool = False  # transfers go on behind the end of the file
    script: Callable[[Handler], bool] | None = None  # answers a request itself and returns True, or leaves it
    requests: list[Request] = field(default_factory=list)

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self._server.handle_error = lambda *error: None  # type: ignore[method-assign]  # clients are killed
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        if self.hold is not None:
            self.hold.set()
        self._server.shutdown()
        self._server.server_close()

    def transfers(self, path: str) -> list[Request]:
        return [r for r in self.requests if r.method == "GET" and r.path.endswith(path)]


class Handler(BaseHTTPRequestHandler):
    """One connection to the HubServer `hub`."""

    hub: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def _serve(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(
            Request(self.command, path, self.headers.get("Range"), self.headers.get("Authorization"))
        )
        if self.hub.script is not None and self.hub.script(self):
            return
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/main)?", path):
            self._api(match.group(1))
        elif match := re.fullmatch(rf"/([^/]+/[^/]+)/resolve/(?:main|{COMMIT})/(.+)", path):
            self._file(match.group(1), match.group(2), body)
        else:
            self._error(404, "EntryNotFound")

    def _refused(self, repo: str) -> bool:
        if repo in self.hub.gated:
            self._error(403, "GatedRepo")
        elif repo in self.hub.private and self.headers.get("Authorization") != "Bearer secret":
            self._error(401, "RepoNotFound")
        elif repo not in self.hub.repos:
            self._error(404, "RepoNotFound")
        else:
            return False
        return True

    def _api(self, repo: str) -> None:
        if self._refused(repo):
            return
        if self.hub.api is not None:
            self.send(200, self.hub.api, {})
            return
        siblings = []
        for path, data in self.hub.repos[repo].items():
            sibling: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
            if path.endswith(LARGE):
                sha256 = hashlib.sha256(data).hexdigest()
                sibling["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 130}
            siblings.append(sibling)
        self.send(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode(), {})

    def _file(self, repo: str, path: str, body: bool) -> None:
        if self._refused(repo):
            return
        data = self.hub.repos[repo].get(path)
        if data is None:
            self._error(404, "EntryNotFound")
            return
        digest = hashlib.sha256(data).hexdigest() if path.endswith(LARGE) else git_sha1(data)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"'}
        headers |= self.hub.headers
        if not body:
            self.send(200, data, headers)
            return
        if self.hub.statuses:
            self._error(self.hub.statuses.pop(0), "")
            return
        data = self.hub.false_content.get(path, data)
        start = 0
        if (asked := self.headers.get("Range")) and not self.hub.no_ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self._error(416, "")
                return
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if self.hub.endless:
            self._send_on(headers)
            return
        self.send(206 if "Content-Range" in headers else 200, data[start:], headers)

    def _send_on(self, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            for _ in range(4096):
                self.wfile.write(bytes(1 << 20))
        self.close_connection = True

    def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        transfer = "ETag" in headers
        if transfer and self.hub.drops:
            self.wfile.write(data[: self.hub.drops.pop(0)])
            self.close_connection = True
            return
        if transfer and self.hub.hold is not None:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.hub.hold.wait(60)
            self.close_connection = True
            return
        if transfer and self.hub.pace:
            for start in range(0, len(data), 1 << 16):
                self.wfile.write(data[start : start + (1 << 16)])
                time.sleep(self.hub.pace)
            return
        self.wfile.write(data)

    def _error(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
