"""The text that `llm eval` scores models on."""

from __future__ import annotations

import hashlib
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..console.bounded_io import GZIP, TooLong, read_limited, unpacked
from ..console.wording import count

if TYPE_CHECKING:
    import numpy as np

    from ...tokenizer import Tokenizer

LONGEST_TEXT = 1 << 30  # bytes; the largest of the usual texts has a tenth of that


@dataclass(frozen=True)
class EvalText:
    """A text with its name and the SHA-256 of its UTF-8 bytes."""

    name: str
    text: str
    sha256: str

    def windows(self, tokenizer: Tokenizer, context: int, limit: int | None) -> np.ndarray:
        """int32 [n, context]: the text in windows, see `cut_into_windows`. Special tokens written in it are
        text. A usage error if it does not fill one."""
        from ...runtime.evaluation.scores import cut_into_windows

        ids = tokenizer.encode(self.text)
        bos = tokenizer.bos_id if tokenizer.add_bos else None
        windows = cut_into_windows(ids, context, bos, limit)
        if not len(windows):
            raise typer.BadParameter(
                f"{self.name} has {count(len(ids), 'token')}, which do not fill a window of {context}; "
                "take a longer text or a smaller -c"
            )
        return windows


def read_text(name: str) -> EvalText:
    """A text file, one packed with gzip, or `-`, which is stdin. A usage error if it cannot be read or is not
    UTF-8."""
    try:
        if name == "-":
            raw = b"" if sys.stdin is None else read_limited(sys.stdin.buffer, LONGEST_TEXT)
        else:
            with Path(name).open("rb") as file:
                raw = read_limited(file, LONGEST_TEXT)
        if raw.startswith(GZIP):
            raw = unpacked(raw, LONGEST_TEXT)
        return EvalText(name, raw.decode(), hashlib.sha256(raw).hexdigest())
    except UnicodeDecodeError as problem:
        what = f"is not UTF-8 text ({problem.reason} at byte {problem.start})"
    except TooLong as problem:
        what = str(problem)
    except (EOFError, zlib.error):
        what = "is packed with gzip, and damaged"
    except OSError as problem:
        what = f"cannot be read: {problem.strerror or problem}"
    raise typer.BadParameter(f"{name} {what}", param_hint="--file")
