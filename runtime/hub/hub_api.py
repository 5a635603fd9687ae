"""What the Hub says about a repository: its commit, its files, and what each file must be.

All of it may be false or unbearable; what leaves here is bounded and well-formed. A repository is asked once
which commit `main` stands for, and everything else is asked of that commit.
"""

from __future__ import annotations

import re
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from ...untrusted import parse_json
from .answers import Refused, TooSlow, ask, read_body
from .cache import hub_constants
from .errors import ModelNotFound, StoreError, Unreachable
from .expected import Expected, is_sha1, is_sha256

CONNECT_SECONDS = 4.0  # a Hub that takes longer to accept a connection counts as out of reach
ANSWER_SECONDS = 60.0  # for a listing, and for the headers of a file
MOST_LISTING_BYTES = 8_000_000  # about 30,000 files
MOST_LISTING_MARKS = 1 << 20  # as in untrusted.Limits; a file takes about 20
MOST_FILES = 20_000  # in a repository

_NO_MODEL = "the Hub has no model {} (or it is private: set HF_TOKEN)"
_ETAG = re.compile(r'(?:W/)?"?([^"]*)"?')


@dataclass(frozen=True)
class ListedFile:
    """A file as the Hub's listing of a repository states it; size and SHA-256 may be missing."""

    path: str
    n_bytes: int | None
    sha256: str | None


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit, by path."""

    commit: str  # 40 hexadecimal digits
    files: dict[str, ListedFile]


def list_files(repo: str) -> Listing:
    """The files of `repo` at the commit that `main` stands for. StoreError if the Hub's answer is no list of
    files, or has more than there can be."""
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repo)
    url = f"{hub_constants().ENDPOINT}/api/models/{repo}?blobs=true"
    with ask("GET", url, hub_headers(), 2 * CONNECT_SECONDS, ANSWER_SECONDS) as answer:
        body = read_body(answer, MOST_LISTING_BYTES, ANSWER_SECONDS)
    try:
        info = parse_json(body, "the answer", MOST_LISTING_MARKS, StoreError)
        commit = info["sha"]
        files = [_listed(sibling) for sibling in info["siblings"]]
    except (StoreError, LookupError, TypeError, AttributeError):
        raise StoreError(f"the Hub's answer about {repo} is no list of files") from None
    if not is_sha1(commit):
        raise StoreError(f"the Hub does not say which commit the files of {repo} belong to")
    if len(files) > MOST_FILES:
        raise StoreError(f"{repo} has {len(files)} files, more than {MOST_FILES}")
    return Listing(commit, {file.path: file for file in files})


def _listed(sibling: Any) -> ListedFile:
    """A file of the listing's JSON. Raises LookupError, TypeError or AttributeError for anything else."""
    path, lfs = sibling["rfilename"], sibling.get("lfs")
    if not isinstance(path, str):
        raise TypeError("a path must be a string")
    sha256 = lfs.get("sha256") if lfs is not None else None
    return ListedFile(path, _n_bytes(sibling.get("size")), sha256 if is_sha256(sha256) else None)


def file_url(repo: str, commit: str, path: str) -> str:
    """The address of a file at a commit."""
    return f"{hub_constants().ENDPOINT}/{repo}/resolve/{commit}/{quote(path)}"


def hub_headers() -> dict[str, str]:
    """The headers of a request to the Hub, with the token if there is one. Bodies come as they are: sizes and
    digests are those of the file.

    Not huggingface-hub's own `build_hf_headers`: for the name of the program that calls it, which it adds to
    the user agent, it asks the server for a list first, without a limit for the time of the whole answer.
    """
    from huggingface_hub import constants, get_token

    headers = {"User-Agent": "kukri", "Accept-Encoding": "identity"}
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return headers | ({"Authorization": f"Bearer {token}"} if token else {})


def expected_file(repo: str, commit: str, file: ListedFile, sha256: str | None) -> Expected:
    """What the bytes of `file` must be: by the listing, by the headers with which the Hub announces it, and
    by `sha256`, the digest that the caller knows (None: none). StoreError where these contradict each other.

    The ETag of a large file is its SHA-256, that of a small one is git's SHA-1.
    """
    timeout = float(hub_constants().HF_HUB_ETAG_TIMEOUT)
    url = file_url(repo, commit, file.path)
    with ask("HEAD", url, hub_headers(), timeout, ANSWER_SECONDS, enough="X-Repo-Commit") as answer:
        headers = answer.headers
        is_itself = answer.status_code == 200 and headers.get("Content-Encoding", "identity") == "identity"
    if headers.get("X-Repo-Commit") != commit:
        raise StoreError(f"the Hub does not say that {file.path} of {repo} belongs to commit {commit[:12]}")
    match = _ETAG.fullmatch(headers.get("X-Linked-Etag") or headers.get("ETag") or "")
    etag = match.group(1) if match else ""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{,127}", etag):
        raise StoreError(f"the Hub gives no usable ETag for {file.path} of {repo}")
    stated = {digest for digest in (sha256, file.sha256, etag if is_sha256(etag) else None) if digest}
    if len(stated) > 1:
        other = next(digest for digest in (file.sha256, etag) if digest and digest != sha256)
        raise StoreError(
            f"the Hub's {file.path} is not the file this name stands for (SHA-256 {other[:12]}…)"
        )
    size = headers.get("X-Linked-Size") or (headers.get("Content-Length", "") if is_itself else "")
    n_bytes = file.n_bytes
    if n_bytes is None and re.fullmatch(r"[0-9]{1,18}", size):
        n_bytes = int(size)
    return Expected(n_bytes, next(iter(stated), None), etag if is_sha1(etag) else None)


def _n_bytes(size: object) -> int | None:
    """`size` if it is a whole number of bytes, else None (unknown)."""
    return size if type(size) is int and 0 <= size < 10**18 else None


@contextmanager
def hub_errors(repo: str) -> Iterator[None]:
    """Raise one of kukri's errors in place of any of huggingface-hub's, and show none of its warnings."""
    constants = hub_constants()
    from huggingface_hub import errors
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()
    if constants.HF_HUB_OFFLINE:
        raise Unreachable(f"{repo} is not on disk, and HF_HUB_OFFLINE forbids asking the Hub")
    if not _reachable(constants.ENDPOINT):
        raise Unreachable(f"{repo} is not on disk, and the Hub ({constants.ENDPOINT}) cannot be reached")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Refused as refusal:
        raise _named(refusal, repo, constants.ENDPOINT) from None
    except errors.HFValidationError:
        raise ModelNotFound(_NO_MODEL.format(repo)) from None
    except TooSlow:
        raise Unreachable(f"the Hub ({constants.ENDPOINT}) takes too long to answer about {repo}") from None
    except (errors.HTTPError, errors.OfflineModeIsEnabled) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise Unreachable(f"{repo} is not on disk, and the Hub cannot be reached: {reason}") from None
    except Exception as problem:
        if type(problem).__name__ != "InvalidURL":  # the class belongs to huggingface-hub's HTTP client
            raise
        raise Unreachable(f"{repo} is not on disk, and a proxy's or the Hub's address is none") from None


def _named(refusal: Refused, repo: str, endpoint: str) -> ModelNotFound:
    """What an HTTP error of the Hub means for whoever asked for `repo`."""
    if refusal.code == "GatedRepo":
        return ModelNotFound(f"{repo} is gated: accept its licence at {endpoint}/{repo} and set HF_TOKEN")
    if refusal.code in ("RepoNotFound", "RevisionNotFound"):
        return ModelNotFound(_NO_MODEL.format(repo))
    if refusal.code == "EntryNotFound":
        return ModelNotFound(f"{repo} no longer has the file it lists")
    if refusal.status in (401, 403):
        return ModelNotFound(f"the Hub refuses {repo} (HTTP {refusal.status}): check HF_TOKEN")
    return Unreachable(f"the Hub answers HTTP {refusal.status} for {repo}")


def _reachable(endpoint: str) -> bool:
    """Whether a server accepts connections at `endpoint` within CONNECT_SECONDS, name resolution included."""
    import urllib.request  # here, because it is slow to import

    try:
        url = urlsplit(endpoint)
        host = url.hostname
    except ValueError:
        return False
    if not host:
        return False
    if url.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return True  # the proxy connects, and its answer says more
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        return False
    answers: list[bool] = []

    def knock() -> None:
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            answers.append(True)
        except (OSError, ValueError):  # ValueError: a name that no host can have
            answers.append(False)

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS + 0.5)
    return answers == [True]
