"""The top k of a step's logits, by way of the maxima of groups that the step's threads find.

Each thread has a part of the logits in its caches when it has computed them, and finds the largest of each
group for next to nothing; a thread that were to look at all logits behind the step would fetch the others'.
"""

from __future__ import annotations

import numpy as np

from ..engine.sampling.top_k import TopK, top_k_of
from .abi import records
from .abi.sizes import LOGITS_GROUP
from .kernels import FIRST_LOGITS, GROUP_MAXIMA
from .lowering.lower import StepList

MANY_GROUPS = 4  # groups for each of the k logits: with fewer of them, all logits are looked at


class TopLogits:
    """Finds the top k of the logits that the steps of a machine leave in `width` columns of up to `max_rows`
    rows."""

    def __init__(self, max_rows: int, width: int) -> None:
        self._maxima = np.empty((max_rows, width // LOGITS_GROUP), np.float32)
        ids, values = np.empty(max_rows, np.int64), np.empty(max_rows, np.float32)
        self._ids, self._values = ids, values
        self._first = [TopK(ids[i : i + 1], values[i : i + 1]) for i in range(max_rows)]  # what a step leaves
        self._found = ids.data  # as numbers: NumPy's would take longer than all else here
        self._lists: dict[tuple[int, int], tuple[StepList, np.ndarray, list[np.ndarray]]] = {}

    def serves(self, k: int, n_tokens: int) -> bool:
        """Whether maxima help to find the top `k` of `n_tokens` logits."""
        return n_tokens // LOGITS_GROUP >= MANY_GROUPS * k

    def instructions(self, run: StepList, k: int, n_tokens: int) -> np.ndarray:
        """Those of `run`, INSTRUCTION [n], and what finds the maxima, and with a `k` of 1 the largest of the
        first `n_tokens` logits."""
        key = id(run), n_tokens if k == 1 else 0
        if key not in self._lists:
            maxima, first = np.zeros(1, records.GROUP_MAXIMA), np.zeros(1, records.FIRST_LOGITS)
            outputs = ("logits", run.result), ("maxima", self._maxima)
            for arguments in (maxima, first):
                for name, array in outputs:
                    arguments[name], arguments[f"{name}_stride"] = array.ctypes.data, array.strides[0]
            maxima["n_groups"] = self._maxima.shape[1]
            first["n_groups"], first["n_tokens"] = n_tokens // LOGITS_GROUP, n_tokens
            first["ids"], first["values"] = self._ids.ctypes.data, self._values.ctypes.data
            last = np.zeros(2 if k == 1 else 1, records.INSTRUCTION)
            last["barrier"] = True
            last["kernel"][0], last["arguments"][0] = GROUP_MAXIMA.address, maxima.ctypes.data
            last["kernel"][1:], last["arguments"][1:] = FIRST_LOGITS.address, first.ctypes.data
            self._lists[key] = run, np.concatenate([run.instructions, last]), [maxima, first]
        return self._lists[key][1]

    def top_k(self, logits: np.ndarray, k: int) -> list[TopK]:
        """The top `k` of each row of float32 [rows, tokens], whose step had those `instructions`; as
        `top_k_of`, and valid until the next step."""
        n_rows = len(logits)
        if k == 1:
            if n_rows == 1 and self._found[0] >= 0:
                return self._first[:1]
            found = [self._first[i] if self._found[i] >= 0 else None for i in range(n_rows)]
        else:
            n_groups = logits.shape[1] // LOGITS_GROUP
            maxima = self._maxima[:n_rows, :n_groups]
            found = [_top_k(*row, k) for row in zip(logits, maxima, strict=True)]
        return [top or top_k_of([logits[i]], k)[0] for i, top in enumerate(found)]

    def close(self) -> None:
        """Let go of the memory of the lists."""
        self._lists.clear()


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
