"""Log-sum-exp and Kullback-Leibler divergence of rows of logits, on several threads, for evaluation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ...quant.jit.kernel import CpuKernel
from .abi.records import ROW_SCORES
from .kernels import DIVERGENCES, LOG_SUMS
from .processors import default_threads


@dataclass(frozen=True)
class LogSums:
    """float64 [rows, 3]: largest logit, log of the sum of exponentials, first column of the largest."""

    table: np.ndarray

    @property
    def log_sum(self) -> np.ndarray:
        """float64 [rows]: ln Σ e^logit."""
        return self.table[:, 1]

    @property
    def top(self) -> np.ndarray:
        """int64 [rows]: first column of the largest logit."""
        return self.table[:, 2].astype(np.int64)

    def __getitem__(self, rows: slice) -> LogSums:
        return LogSums(self.table[rows])


class RowScorer:
    """Computes statistics of float32 logits [rows, vocab] with contiguous rows; threads partition the rows.

    Allocates nothing as wide as the vocabulary. The log sum of a row is NaN if the row has NaN or +inf, or
    nothing above -inf. Use as a context manager, or call `close`.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.n_threads = threads or default_threads()
        self._pool = ThreadPoolExecutor(self.n_threads, "kukri-scores")

    def log_sums(self, logits: np.ndarray) -> LogSums:
        """The log sums of the rows: ln p = logit - log sum."""
        sums = np.empty((len(logits), 3))
        self._run(LOG_SUMS, _checked("logits", logits) | {"sums": sums})
        return LogSums(sums)

    def divergences(
        self, base: np.ndarray, base_sums: LogSums, logits: np.ndarray, sums: LogSums
    ) -> np.ndarray:
        """float64 [rows]: the Kullback-Leibler divergence Σ p · (ln p - ln q) of each row, in nats.

        p is the softmax of `base`, q that of `logits`; the `sums` are from `log_sums`. Logits are bounded
        below by 10⁴ less than the largest of their row. ValueError if the shapes differ.
        """
        if base.shape != logits.shape:
            raise ValueError(f"logits {logits.shape} cannot be compared with {base.shape}")
        out = np.empty(len(logits))
        arrays = {"sums": base_sums.table, "other_sums": sums.table, "out": out}
        self._run(DIVERGENCES, _checked("logits", base) | _checked("other", logits) | arrays)
        return out

    def _run(self, kernel: CpuKernel, arrays: dict[str, np.ndarray]) -> None:
        """Run a kernel on all rows, each thread on its part; `arrays` by their ROW_SCORES fields."""
        n_rows, width = arrays["logits"].shape
        parts = min(self.n_threads, n_rows)
        bounds = [n_rows * i // parts for i in range(parts + 1)] if parts else [0]
        records = np.zeros(parts, ROW_SCORES)
        for record, first, last in zip(records, bounds, bounds[1:], strict=False):
            record["n_rows"], record["width"] = last - first, width
            for name, array in arrays.items():
                record[name] = array.ctypes.data + first * array.strides[0]
                if array.ndim == 2 and name in STRIDES:
                    record[STRIDES[name]] = array.strides[0]
        call = kernel.compiled.ctypes
        list(self._pool.map(lambda i: call(records[i : i + 1].ctypes.data, 0, 0), range(parts)))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def __enter__(self) -> RowScorer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


STRIDES = {"logits": "stride", "other": "other_stride"}  # ROW_SCORES fields of the row strides


def _checked(name: str, logits: np.ndarray) -> dict[str, np.ndarray]:
    """{name: logits}. ValueError unless they are float32 [rows, vocab] with contiguous rows."""
    if logits.dtype != np.float32 or logits.ndim != 2 or logits.strides[1] != 4:
        raise ValueError("logits must be float32 [rows, vocab] with contiguous rows")
    return {name: logits}
