"""What attention heads do: scores of a few known patterns, and the strongest links between tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .attention import AttentionWeights


@dataclass(frozen=True)
class HeadSummary:
    """How much of its weight a head puts, on average over the rows behind the first, on

    - `previous`: the token before;
    - `first`: the first token, where many heads leave what they do not need (Xiao et al. 2023, "Efficient
      Streaming Language Models with Attention Sinks");
    - `own`: the token itself;
    - `induction`: tokens behind earlier occurrences of the row's own token, over the rows that have some
      (Olsson et al. 2022, "In-context Learning and Induction Heads"); NaN if no token occurs twice.

    `entropy` is that of the weights, in bits.
    """

    layer: int
    head: int
    previous: float
    first: float
    own: float
    induction: float
    entropy: float

    @property
    def kind(self) -> str:
        """The pattern that takes half of the weight or more: one of these names but `entropy`, or ""."""
        scores = {k: getattr(self, k) for k in ("induction", "previous", "first", "own")}
        best = max(scores, key=lambda k: scores[k] if scores[k] == scores[k] else -1.0)
        return best if scores[best] >= 0.5 else ""


@dataclass(frozen=True)
class Link:
    """A row that looks at a position, with how much of its weight."""

    layer: int
    head: int
    row: int
    position: int
    weight: float


def head_summaries(attention: AttentionWeights, ids: Sequence[int]) -> list[HeadSummary]:
    """A summary of each head that was kept; `ids` are the inspected tokens. Without rows behind the first
    there are none."""
    kept = [i for i, row in enumerate(attention.rows) if row]
    if not kept:
        return []
    rows = np.array([attention.rows[i] for i in kept])
    weights = attention.weights[:, kept]  # [heads, rows, positions]
    at = np.arange(len(rows))
    behind = _behind_earlier(rows, np.asarray(ids))
    repeats = behind.any(axis=1)
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    found = []
    for i, head in enumerate(attention.heads):
        w = weights[i]
        induction = float((w * behind).sum(1)[repeats].mean()) if repeats.any() else float("nan")
        found.append(
            HeadSummary(
                attention.layer,
                head,
                previous=float(w[at, rows - 1].mean()),
                first=float(w[:, 0].mean()),
                own=float(w[at, rows].mean()),
                induction=induction,
                entropy=float(-(w * logs[i]).sum(1).mean()),
            )
        )
    return found


def _behind_earlier(rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """bool [rows, positions]: whether a position is right behind an earlier occurrence of the row's token."""
    behind = np.zeros((len(rows), len(ids)), bool)
    for i, row in enumerate(rows):
        earlier = np.flatnonzero(ids[:row] == ids[row])
        behind[i, earlier + 1] = True
        behind[i, row] = False  # the row itself, behind an equal token
    return behind


def strongest_links(attention: Mapping[int, AttentionWeights], n: int) -> list[Link]:
    """The `n` largest weights of all heads, the largest first; without those on the first token and on the
    row itself, which say little."""
    links = []
    for layer, each in attention.items():
        weights = each.weights.copy()
        weights[:, :, 0] = 0
        for i, row in enumerate(each.rows):
            weights[:, i, row] = 0
        flat = weights.reshape(-1)
        k = min(n, len(flat))
        for place in np.argpartition(-flat, k - 1)[:k].tolist():
            head, row, position = (int(x) for x in np.unravel_index(place, weights.shape))
            if flat[place] > 0:
                links.append(Link(layer, each.heads[head], each.rows[row], position, float(flat[place])))
    return sorted(links, key=lambda link: -link.weight)[:n]
