"""The settings of `/set`, the fields of SamplingParams, in words."""

from __future__ import annotations

import shlex
from typing import Any

UNSET = {"seed": "random", "max_tokens": "no limit"}  # what None means
_NO_VALUE = ("", "none", "default", "-1")
_ON, _OFF = ("on", "true", "yes", "1"), ("off", "false", "no", "0")


def shown(name: str, value: Any) -> str:
    """A setting's value as `parsed` reads it again: "random", "off", "'a b' c"."""
    if value is None:
        return UNSET.get(name, "default")
    if isinstance(value, tuple):
        return shlex.join(value) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def parsed(name: str, kind: str, text: str) -> object:
    """A setting's value; `kind` is the type of its field. ValueError if the text is none.

    "none", and for a number that has no default also "-1" as in llama.cpp, or what `shown` says, unset it.
    """
    if "tuple" in kind:
        return () if text.lower() == "none" else tuple(shlex.split(text))
    if "None" in kind and text.lower() in (*_NO_VALUE, UNSET.get(name)):
        return None
    if "bool" in kind and text.lower() in _ON + _OFF:
        return text.lower() in _ON
    try:
        return float(text) if "float" in kind else int(text)
    except ValueError:
        what = "on or off" if "bool" in kind else "a number" if "float" in kind else "a whole number"
        or_none = f", or none ({UNSET.get(name, 'default')})" if "None" in kind else ""
        raise ValueError(f"{text!r} is no value for {name}: {what}{or_none}") from None
