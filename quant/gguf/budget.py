"""How much of a model's GGUF headers is read: all keys, values and names in front of the tensor data.

The data of a GGUF file have no limit, but everything before them becomes Python objects or copies when a file
is opened. A file is refused once it has more of them than several times the most that any model has.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_HEADER_BYTES = 1 << 26  # everything before the tensor data; the largest vocabularies take 2^24
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 15  # experts are stacked, so no model has 2^12
MAX_NAME_BYTES = 1 << 22  # of keys and tensors; llama.cpp allows 64 each for tensors
MAX_TEXT_BYTES = 1 << 25  # single texts; chat templates, and some files have a whole tokenizer.json as a text
MAX_STRINGS = 1 << 21  # elements of string arrays; 2^18 tokens with 2^19 merges are the most that there is
MAX_ELEMENTS = 1 << 24  # numbers in arrays
MAX_NESTED = 1 << 14  # arrays inside of arrays, which no known model has


@dataclass
class HeaderBudget:
    """What the headers of a model may still hold, all its shards together; one of these fields is `spend`'s
    `what`. The readers of a model's shards share one."""

    header_bytes: int = MAX_HEADER_BYTES
    keys: int = MAX_KEYS
    tensors: int = MAX_TENSORS
    name_bytes: int = MAX_NAME_BYTES
    text_bytes: int = MAX_TEXT_BYTES
    strings: int = MAX_STRINGS
    elements: int = MAX_ELEMENTS
    nested: int = MAX_NESTED

    def spend(self, what: str, n: int) -> bool:
        """Take n off the field `what`; False if that is more than is left."""
        left: int = getattr(self, what) - n
        setattr(self, what, left)
        return left >= 0
