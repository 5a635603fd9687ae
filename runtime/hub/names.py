"""Model names: a file or folder, a short name of the catalogue, `org/repo[:quant]` on the Hub, or an address
there."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from .catalogue import BY_NAME, Entry
from .errors import ModelNotFound
from .files import stem

_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+))?")
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_NO_MODELS = ("datasets", "spaces", "collections", "papers", "docs", "models", "api")  # first parts of paths


@dataclass(frozen=True)
class HubName:
    """`org/repo`, and which of its GGUF models: a quantisation or a file name (None: the preferred one)."""

    repo: str
    quant: str | None


def parse_name(name: str) -> Path | Entry | HubName:
    """What `name` stands for: a path that exists, an entry of the catalogue, or a name on the Hub, which is
    not asked. Raises ModelNotFound if it can be none of these.

    An address is that of a repository or of a GGUF file, on huggingface.co, hf.co or HF_ENDPOINT.
    """
    if _SCHEME.match(name):
        return _from_address(name)
    path = Path(os.fsdecode(name.encode("utf-8", "surrogateescape")))  # the bytes as they were typed
    path = Path(os.path.expanduser(path)) if name.startswith("~") else path
    if name.lower().startswith(tuple(f"{host}/" for host in _HUB_HOSTS)) and not os.path.exists(path):
        return _from_address("https://" + name)
    if looks_like_path(name) or name.count("/") > 1:
        if not name or not os.path.exists(path):
            raise ModelNotFound(f"no such file or folder: {name}")
        return path
    if entry := BY_NAME.get(name.lower()):
        return entry
    if name and os.path.exists(path):
        return path
    if match := _HUB_NAME.fullmatch(name):
        return HubName(match.group(1), match.group(2))
    raise ModelNotFound(f"no model is named {name!r}: {_hint(name.lower())}")


def looks_like_path(name: str) -> bool:
    """Whether `name` can only be a file or folder: it begins as paths do or ends as model files do."""
    return (
        name.startswith((".", "~", os.sep))
        or name.lower().endswith((".gguf", ".safetensors"))
        or "\\" in name
    )


def _hint(name: str) -> str:
    """What a name that is unknown may have meant."""
    if sizes := [each for each in BY_NAME if each.startswith(name + ":")]:
        return f"there are {', '.join(sizes)}"
    near = difflib.get_close_matches(name, BY_NAME, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`llm list --all` shows the names there are"
    return f"{hint} (or give a file, a folder or org/repo[:quant])"


def _from_address(address: str) -> HubName:
    """The name on the Hub that an address stands for. Raises ModelNotFound for any other address.

    `host/org/repo`, also with `:quant` or `/tree/main`; `host/org/repo/blob/main/file.gguf`, `…/resolve/…`.
    """
    place = _place(address)
    url = urlsplit(address)
    parts = [unquote(part) for part in place.split("/") if part]
    more = parts[2:]
    match = _HUB_NAME.fullmatch("/".join(parts[:2]))
    if match is None or parts[0].lower() in _NO_MODELS:
        raise ModelNotFound(f"{_shown(address)} is no model on the Hub: …/org/repo is the address of one")
    name = HubName(match.group(1), match.group(2))
    if not more:
        shown = parse_qs(url.query).get("show_file_info", [""])[0]  # the page of one GGUF file
        return HubName(name.repo, stem(shown)) if shown.lower().endswith(".gguf") else name
    kind, revision, file = more[0], "/".join(more[1:2]), "/".join(more[2:])
    if kind not in ("blob", "resolve", "raw", "tree") or name.quant is not None:
        raise ModelNotFound(f"{_shown(address)} is the address of no file: …/org/repo/blob/main/FILE.gguf is")
    if revision not in ("main", ""):
        raise ModelNotFound(f"kukri takes the revision main of a repository, not {revision}: {name.repo}")
    if kind == "tree" and not file:
        return name
    if not file.lower().endswith(".gguf"):
        raise ModelNotFound(
            f"{file or _shown(address)} is no GGUF file; {name.repo} names the whole repository"
        )
    return HubName(name.repo, stem(file))


def _place(address: str) -> str:
    """The path of an address below its Hub. Raises ModelNotFound if it is not on the Hub."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    try:
        url, own = urlsplit(address), urlsplit(endpoint)
        where = (url.hostname or "", url.port)
        if own.hostname and where == (own.hostname, own.port) and f"{url.path}/".startswith(f"{own.path}/"):
            return url.path[len(own.path) :]
    except ValueError:
        raise ModelNotFound(f"{_shown(address)} is no address") from None
    if where[0] in _HUB_HOSTS:
        return url.path
    hosts = f"huggingface.co{f' and {own.hostname}' if own.hostname else ''}"
    raise ModelNotFound(
        f"models are fetched from {hosts} only, not from {where[0] or _shown(address)}: "
        "download the file yourself and give its path"
    )


def _shown(address: str) -> str:
    """An address for a message: without a user, a password and a query, which may hold secrets."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"
