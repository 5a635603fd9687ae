"""A Hub that means harm by its answers: names, second answers, sizes, pace and redirects."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kukri.runtime.hub import answers, download, hub_api, repository
from kukri.runtime.hub.errors import Unreachable

from .hostile_hub import FILE, GGUF, REPO, TOKEN, Field, Script, endlessly, field, of
from .hub_server import COMMIT, Handler, HubServer

__all__ = ["field"]  # a fixture

OTHER_COMMIT = "f" * 40
LEADING_OUT = ["../../../x", "../../../../../../x", "{around}/x", "..", ".", "a/b", "..\\..\\x", "C:x", "~/x"]


def with_headers(part: str, headers: dict[str, str], method: str = "HEAD", first: int = 0) -> Script:
    """Answer requests of this kind as the hub would, with other headers, but the first ones truly."""
    seen = [0]

    def script(handler: Handler) -> bool:
        if not of(handler, method, part):
            return False
        seen[0] += 1
        if seen[0] > first:
            handler.hub.headers = headers
        return False

    return script


@pytest.mark.parametrize("etag", LEADING_OUT)
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_second_answer_is_not_asked_for(field: Field, method: str, etag: str) -> None:
    etag = etag.format(around=field.around)
    evil = {"ETag": f'"{etag}"', "X-Linked-Etag": f'"{etag}"', "X-Repo-Commit": etag}
    first = 1 if method == "HEAD" else 0
    field.hub.script = with_headers("/resolve/", evil, method, first)
    assert field.pull() == field.path
    assert field.path.read_bytes() == GGUF


@pytest.mark.parametrize("header", ["ETag", "X-Linked-Etag", "X-Repo-Commit"])
@pytest.mark.parametrize("value", [*LEADING_OUT, "", " ", "a" * 300, "é", "x\ty", OTHER_COMMIT, "0" * 64])
def test_a_name_that_leads_out_is_no_name(field: Field, header: str, value: str) -> None:
    value = value.format(around=field.around)
    if header == "X-Linked-Etag" and not value.strip():
        pytest.skip("as if there were none")
    field.hub.headers = {header: value.encode().decode("latin-1")}
    field.refused()


@pytest.mark.parametrize("commit", [*LEADING_OUT, "", "main", "f" * 39, "F" * 40, None, 5, ["f" * 40], True])
def test_the_listing_states_a_commit(field: Field, commit: Any) -> None:
    commit = commit.format(around=field.around) if isinstance(commit, str) else commit
    listing = {"sha": commit, "siblings": [{"rfilename": FILE, "size": len(GGUF)}]}
    field.hub.api = json.dumps(listing).encode()
    field.refused("which commit")


def test_all_files_come_from_the_commit_of_the_listing(field: Field) -> None:
    """`main` has moved in between, or the hub says so."""
    field.hub.headers = {"X-Repo-Commit": OTHER_COMMIT}
    field.refused("belongs to commit")
    field.hub.headers = {}
    field.pull()
    asked = {request.path for request in field.hub.requests if "/resolve/" in request.path}
    assert asked == {f"/{REPO}/resolve/{COMMIT}/{FILE}"}


NAMES = [
    "../x.gguf", "../../../../one/x.gguf", "/x.gguf", "//x.gguf", "a//x.gguf", "./x.gguf", "a/../../x.gguf",
    "..\\x.gguf", "a\\..\\..\\x.gguf", "C:x.gguf", "C:\\x.gguf", "x.gguf:stream.gguf", "a\0.gguf", "a\n.gguf",
    "\x1b[2J.gguf", "\ud800.gguf", "a /x.gguf", "a./x.gguf", ".. /x.gguf", "CON/x.gguf", "nul.gguf",
    "COM1.x.gguf", "x" * 300 + ".gguf", "a/" * 600 + "x.gguf", "a?.gguf", "a*.gguf", "\u202efugg.gguf",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_file_names_that_lead_out(field: Field, name: str) -> None:
    listing = {"sha": COMMIT, "siblings": [{"rfilename": name, "size": 5}]}
    field.hub.api = json.dumps(listing).encode()
    field.refused("cannot be stored")
    assert not [request for request in field.hub.requests if "/resolve/" in request.path]


@pytest.mark.parametrize("name", ["config.json/../../x.safetensors", "model../x.jinja"])
def test_names_of_a_checkpoint_that_lead_out_are_not_chosen(field: Field, name: str) -> None:
    names = ["config.json", "model.safetensors", name, "additional_chat_templates/...jinja"]
    siblings = [{"rfilename": name, "size": 2} for name in names]
    field.hub.api = json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
    field.hub.repos[REPO] = {"config.json": b"{}", "model.safetensors": b"{}"}
    with pytest.raises(repository.ModelNotFound):  # of the template, which the hub does not have
        field.pull()


def test_content_disposition_names_nothing(field: Field) -> None:
    names = {"Content-Disposition": 'attachment; filename="../../../x"', "Content-Location": "/etc/passwd"}
    field.hub.headers = names
    assert field.pull().read_bytes() == GGUF


def sibling(**changed: Any) -> bytes:
    return json.dumps({"sha": COMMIT, "siblings": [{"rfilename": FILE, **changed}]}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"5", b"{", b"[" * 1_000_000, b'{"a":' * 500_000, b'{"siblings": null}', b"\xff\xfe", b"NaN",
        b'{"sha": "%s"}' % COMMIT.encode(), b'{"sha": "%s", "siblings": {"a": 1}}' % COMMIT.encode(),
        b'{"sha": "%s", "siblings": "abc"}' % COMMIT.encode(), b'{"siblings": [' + b"9" * 5000 + b"]}",
        sibling(rfilename=5), sibling(rfilename=None), sibling(rfilename=[FILE]), sibling(lfs=5),
        sibling(lfs="a"), sibling(lfs=[1]),
    ],
)  # fmt: skip
def test_an_answer_that_is_no_listing(field: Field, answer: bytes) -> None:
    field.hub.api = answer
    field.refused("no list of files")


@pytest.mark.parametrize("size", [-1, True, "9", 1.5, None, 10**30, [1]])
def test_a_size_that_is_none_is_unknown(field: Field, size: Any) -> None:
    field.hub.api = sibling(size=size)
    assert field.pull().read_bytes() == GGUF


def test_a_listing_is_bounded(field: Field) -> None:
    siblings = [{"rfilename": f"{i}.gguf"} for i in range(hub_api.MOST_FILES + 1)]
    field.hub.api = json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
    field.refused("more than 20000")
    field.hub.api = json.dumps({"sha": COMMIT, "siblings": siblings[:-1]}).encode()
    with pytest.raises(repository.ModelNotFound) as caught:
        field.pull("Q4_0")
    assert len(str(caught.value)) < 1000
    field.hub.api = b" " * (hub_api.MOST_LISTING_BYTES + 1)
    field.refused("longer than")

    def endless(handler: Handler) -> bool:
        handler.send_response(200)
        handler.end_headers()
        endlessly(handler, b'{"a": "' + b"x" * (1 << 20))
        return True

    field.hub.script = endless
    field.refused("longer than")


def test_a_compressed_listing_is_refused(field: Field) -> None:
    def bomb(handler: Handler) -> bool:
        handler.send(200, b"\x1f\x8b", {"Content-Encoding": "gzip"})
        return True

    field.hub.script = bomb
    field.refused("compressed")


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_api, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(download, "BEGIN_SECONDS", 1.0)
    monkeypatch.setattr(download, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.5)


def head_line_by_line(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    endlessly(handler, b"X: y\r\n", 0.05)


def head_byte_by_byte(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    endlessly(handler, b"y", 0.05)


def head_without_end(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    endlessly(handler, b"y" * 65536)


def go_on_for_ever(handler: Handler) -> None:
    endlessly(handler, b"HTTP/1.1 100 Continue\r\n\r\n", 0.01)


def silence(handler: Handler) -> None:
    endlessly(handler, b"", 0.05)


def body_byte_by_byte(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 76804\r\n\r\n")
    endlessly(handler, b"y", 0.05)


def chunk_header_byte_by_byte(handler: Handler) -> None:
    """Nothing of this is the body's, so that whoever looks at the body's chunks sees none."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;")
    endlessly(handler, b"y", 0.05)


def error_without_end(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 410 Gone\r\nTransfer-Encoding: chunked\r\n\r\n")
    endlessly(handler, b"10000\r\n" + b"x" * 65536 + b"\r\n")


def redirect_without_end(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: /x\r\nTransfer-Encoding: chunked\r\n\r\n")
    endlessly(handler, b"10000\r\n" + b"x" * 65536 + b"\r\n")


NEVER_ENDING = [
    head_line_by_line, head_byte_by_byte, head_without_end, go_on_for_ever, silence, body_byte_by_byte,
    chunk_header_byte_by_byte, error_without_end, redirect_without_end,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("answer", NEVER_ENDING)
@pytest.mark.parametrize("request_", ["GET /api/", "HEAD /resolve/", "GET /resolve/"])
def test_every_answer_ends(field: Field, request_: str, answer: Callable[[Handler], None]) -> None:
    method, _, part = request_.partition(" ")
    if method == "HEAD" and answer in (body_byte_by_byte, chunk_header_byte_by_byte):
        pytest.skip("there is no body")

    def script(handler: Handler) -> bool:
        if of(handler, method, part) or handler.path == "/x":
            answer(handler)
            return True
        return False

    field.hub.script = script
    field.refused()


@pytest.mark.parametrize("steps", [[1], [70_000, 0]], ids=["a byte each", "anew each time"])
def test_a_transfer_that_gets_nowhere_is_given_up(
    field: Field, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    n = [0]

    def script(handler: Handler) -> bool:
        if not of(handler, "GET", "/resolve/"):
            return False
        n[0] += 1
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(GGUF)))
        handler.end_headers()
        handler.wfile.write(GGUF[: steps[n[0] % len(steps)]])
        handler.close_connection = True
        return True

    field.hub.script = script
    field.refused("broke off")
    assert n[0] < 10


@pytest.fixture
def other(field: Field) -> Iterator[HubServer]:
    """Another host, as far as ports make one, that has the same."""
    server = HubServer(field.hub.repos)
    server.start()
    yield server
    server.stop()


def redirecting(to: str, *requests: str) -> Script:
    """Redirect these requests to the same path at `to`, or to `to` itself if it has no place for a path."""

    def script(handler: Handler) -> bool:
        if not any(f"{handler.command} {handler.path}".startswith(request) for request in requests):
            return False
        handler.send(302, b"", {"Location": to.format(path=handler.path)})
        return True

    return script


REQUESTS = ["GET /api/", f"HEAD /{REPO}/resolve/", f"GET /{REPO}/resolve/"]


@pytest.mark.parametrize("request_", REQUESTS)
def test_the_token_goes_to_no_other_host(field: Field, other: HubServer, request_: str) -> None:
    field.hub.script = redirecting(other.url + "{path}", request_)
    assert field.pull().read_bytes() == GGUF
    assert other.requests
    assert {request.authorization for request in other.requests} == {None}
    assert {request.authorization for request in field.hub.requests} == {f"Bearer {TOKEN}"}


def test_the_token_does_not_come_back_by_a_detour(field: Field, other: HubServer) -> None:
    other.script = redirecting(field.hub.url + "/from-elsewhere{path}", f"GET /{REPO}/resolve/")
    field.hub.script = redirecting(other.url + "{path}", f"GET /{REPO}/resolve/")
    field.refused()
    detour = [r for r in field.hub.requests if r.path.startswith("/from-elsewhere")]
    assert [request.authorization for request in detour] == [None]


def test_a_redirect_within_the_hub_keeps_the_token(field: Field) -> None:
    field.hub.private.add(REPO)
    field.hub.script = redirecting(field.hub.url + "/moved{path}", "GET /api/")
    field.refused()
    assert field.hub.requests[-1].path.startswith("/moved")
    assert field.hub.requests[-1].authorization == f"Bearer {TOKEN}"


def test_what_the_hub_states_about_a_file_elsewhere_is_used(field: Field, other: HubServer) -> None:
    """The way of the Hub: the redirect to another host carries commit, ETag and size."""
    import hashlib

    def script(handler: Handler) -> bool:
        if "/resolve/" not in handler.path:
            return False
        headers = {
            "Location": other.url + handler.path,
            "X-Repo-Commit": COMMIT,
            "X-Linked-Etag": f'"{hashlib.sha256(GGUF).hexdigest()}"',
            "X-Linked-Size": str(len(GGUF)),
            "ETag": '"../../x"',
        }
        handler.send(302, b"", headers)
        return True

    field.hub.script = script
    field.hub.api = sibling()
    assert field.pull().read_bytes() == GGUF
    assert [request.method for request in other.requests] == ["GET"]
    assert other.requests[0].authorization is None


@pytest.mark.slow  # names of hosts are looked up
@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd", "file:/etc/passwd", "ftp://127.0.0.1/x", "data:,x", "gopher://127.0.0.1:70/x",
        "http://user:password@127.0.0.1/x", "http://[::1", "http://127.0.0.1:99999/", "//", "http://",
        "\\\\x\\y", "http://" + "a" * 60_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("request_", REQUESTS)
def test_redirects_that_are_not_followed(
    field: Field, monkeypatch: pytest.MonkeyPatch, request_: str, location: str
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    field.hub.script = redirecting(location, request_)
    field.refused()


@pytest.mark.parametrize("request_", ["GET /", "HEAD /"])
@pytest.mark.parametrize("location", ["{path}", "{path}x"], ids=["loop", "ever on"])
def test_redirects_are_counted(field: Field, request_: str, location: str) -> None:
    field.hub.script = redirecting(location, request_)
    field.refused("redirects more than")
    assert len(field.hub.requests) <= answers.MOST_REDIRECTS + 3


def following(monkeypatch: pytest.MonkeyPatch, start: str, *locations: str) -> list[tuple[str, str | None]]:
    """(address, token) of each request when `start` redirects to the first location, and that to the next."""
    from huggingface_hub import utils

    httpx = sys.modules[type(utils.get_session()).__module__.partition(".")[0]]
    asked: list[tuple[str, str | None]] = []

    def answer(request: Any) -> Any:
        asked.append((str(request.url), request.headers.get("Authorization")))
        if len(asked) <= len(locations):
            return httpx.Response(307, headers={"Location": locations[len(asked) - 1]})
        return httpx.Response(200)

    client = httpx.Client(transport=httpx.MockTransport(answer))
    monkeypatch.setattr(utils, "get_session", lambda: client)
    with answers.ask("GET", start, {"authorization": "Bearer x"}, 5.0, 5.0):
        return asked


@pytest.mark.parametrize(
    ("start", "location", "token"),
    [
        ("https://hub.example/a", "https://hub.example/b", True),
        ("https://hub.example/a", "/b", True),
        ("https://hub.example/a", "//cdn.example/b", False),
        ("https://hub.example/a", "https://hub.example:8443/b", False),
        ("https://hub.example/a", "https://hub.example.evil/b", False),
        ("https://hub.example/a", "https://evil.example/hub.example", False),
        ("https://hub.example/a", "https://HUB.example:443/b", True),
        ("http://hub.example/a", "https://hub.example/b", False),
        ("http://hub.example/a", "http://hub.example.:80/b", False),
    ],
)
def test_which_host_gets_the_token(
    monkeypatch: pytest.MonkeyPatch, start: str, location: str, token: bool
) -> None:
    asked = following(monkeypatch, start, location)
    assert [has for _, has in asked] == ["Bearer x", "Bearer x" if token else None]


def test_encryption_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreachable, match="from https to 'http'"):
        following(monkeypatch, "https://hub.example/a", "http://hub.example/b")


def test_a_model_is_of_few_files(field: Field) -> None:
    n = repository.MOST_CHOSEN + 1
    siblings = [{"rfilename": f"m-Q4_0-{i + 1:05}-of-{n:05}.gguf"} for i in range(n)]
    field.hub.api = json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
    field.refused("1001 files")
    assert not [request for request in field.hub.requests if request.method == "HEAD"]
