"""The top k of a step's logits, by way of the maxima of groups that the step's threads find.

Each thread has a part of the logits in its caches when it has computed them, and finds the largest of each
group for next to nothing; a thread that were to look at all logits behind the step would fetch the others'.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..engine.sampling.top_k import TopK, top_k_of
from .abi.records import GROUP_MAXIMA, INSTRUCTION
from .abi.sizes import LOGITS_GROUP
from .kernels import GROUP_MAXIMA as KERNEL
from .lowering.lower import StepList

MANY_GROUPS = 4  # groups for each of the k logits: with fewer of them, all logits are looked at


class TopLogits:
    """Finds the top k of the logits that the steps of a machine leave in `width` columns of up to `max_rows`
    rows."""

    def __init__(self, max_rows: int, width: int) -> None:
        self._maxima = np.empty((max_rows, width // LOGITS_GROUP), np.float32)
        self._lists: dict[int, tuple[StepList, np.ndarray, np.ndarray]] = {}  # by `id` of the list

    def serves(self, k: int, n_tokens: int) -> bool:
        """Whether maxima help to find the top `k` of `n_tokens` logits."""
        return n_tokens // LOGITS_GROUP >= MANY_GROUPS * k

    def instructions(self, run: StepList) -> np.ndarray:
        """Those of `run`, INSTRUCTION [n], and one that finds the maxima."""
        if id(run) not in self._lists:
            arguments, last = np.zeros(1, GROUP_MAXIMA), np.zeros(1, INSTRUCTION)
            for name, array in (("logits", run.result), ("maxima", self._maxima)):
                arguments[name], arguments[f"{name}_stride"] = array.ctypes.data, array.strides[0]
            arguments["n_groups"] = self._maxima.shape[1]
            last["kernel"], last["arguments"], last["barrier"] = KERNEL.address, arguments.ctypes.data, True
            self._lists[id(run)] = run, np.concatenate([run.instructions, last]), arguments
        return self._lists[id(run)][1]

    def top_k(self, logits: np.ndarray, k: int) -> Iterator[TopK]:
        """The top `k` of each row of float32 [rows, tokens], whose maxima have been found; as `top_k_of`."""
        n_groups = logits.shape[1] // LOGITS_GROUP
        for row, maxima in zip(logits, self._maxima[: len(logits), :n_groups], strict=True):
            yield (_first if k == 1 else _top_k)(row, maxima, k) or top_k_of([row], k)[0]

    def close(self) -> None:
        """Let go of the memory of the lists."""
        self._lists.clear()


def _first(row: np.ndarray, maxima: np.ndarray, k: int) -> TopK | None:
    """The largest logit of a row; None if some logit is not finite."""
    best = int(maxima.argmax())  # NaN is the largest of all
    if maxima[best] != maxima[best]:
        return None
    group = LOGITS_GROUP * best
    rest = LOGITS_GROUP * len(maxima)
    first = group + int(row[group : group + LOGITS_GROUP].argmax())
    value = row.item(first)
    if rest < len(row) and not row[rest:].max() <= value:
        return None
    return TopK(np.array((first,)), np.array((value,), np.float32))


def _top_k(row: np.ndarray, maxima: np.ndarray, k: int) -> TopK | None:
    """The `k` largest logits of a row; None if some logit is not finite.

    At least k of them, and hardly more, reach the k-th largest of the maxima.
    """
    n, whole = len(maxima), LOGITS_GROUP * len(maxima)
    least = float(np.partition(maxima, n - k)[n - k])  # NaN are behind all others
    if np.isnan(maxima.max()) or not np.isfinite(row[whole:]).all():
        return None
    groups = np.flatnonzero(maxima >= least)
    of, columns = np.nonzero(row[:whole].reshape(n, LOGITS_GROUP)[groups] >= least)
    ids = np.concatenate([groups[of] * LOGITS_GROUP + columns, whole + np.flatnonzero(row[whole:] >= least)])
    values = row[ids]
    order = np.argsort(-values, kind="stable")[:k]
    return TopK(ids[order], values[order])
