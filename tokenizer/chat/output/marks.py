"""The marks of thinking, by which a model that has none is known without anything else of this folder."""

from __future__ import annotations

from collections.abc import Collection

# What encloses thinking. The last two are plain text, of Granite 3.2.
THINKING = {
    "<think>": "</think>",
    "[THINK]": "[/THINK]",
    "<|channel>thought": "<channel|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<seed:think>": "</seed:think>",
    "<thought>": "</thought>",
    "\u25c1think\u25b7": "\u25c1/think\u25b7",
    "Here is my thought process:": "Here is my response:",
}
HARMONY = "<|channel|>"  # without which there is no harmony


def may_think(template: str, tokens: Collection[str]) -> bool:
    """Whether a chat template or a vocabulary has a mark of thinking."""
    marks = (*THINKING, *THINKING.values(), HARMONY)
    return any(mark in template or mark in tokens for mark in marks)
