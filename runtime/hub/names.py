"""Model names: a file or folder, a short name of the catalogue, or `org/repo[:quant]` on the Hub."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from .catalogue import BY_NAME, Entry
from .errors import ModelNotFound

_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+))?")


@dataclass(frozen=True)
class HubName:
    """`org/repo`, and which of its GGUF models: a quantisation or a file name (None: the preferred one)."""

    repo: str
    quant: str | None


def parse_name(name: str) -> Path | Entry | HubName:
    """What `name` stands for: a path that exists, an entry of the catalogue, or a name on the Hub, which is
    not asked. Raises ModelNotFound if it can be none of these."""
    looks_like_path = name.startswith((".", "~", os.sep)) or name.lower().endswith((".gguf", ".safetensors"))
    path = Path(os.fsdecode(name.encode("utf-8", "surrogateescape")))  # the bytes as they were typed
    path = Path(os.path.expanduser(path)) if name.startswith("~") else path
    if looks_like_path or "\\" in name or name.count("/") > 1:
        if not name or not os.path.exists(path):
            raise ModelNotFound(f"no such file or folder: {name}")
        return path
    if entry := BY_NAME.get(name.lower()):
        return entry
    if name and os.path.exists(path):
        return path
    if match := _HUB_NAME.fullmatch(name):
        return HubName(match.group(1), match.group(2))
    near = difflib.get_close_matches(name.lower(), BY_NAME, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`llm list --all` shows the names there are"
    raise ModelNotFound(f"no model is named {name!r}: {hint} (or give a file, a folder or org/repo[:quant])")
