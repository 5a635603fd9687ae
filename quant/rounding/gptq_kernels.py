"""The compiled part of `gptq`: rounding columns one after the other, row by row."""

from __future__ import annotations

import numpy as np
from numba import carray

from ..jit.decorators import kernel
from ..jit.simd.memory import as_pointer
from .gptq import COMPENSATE


@kernel
def compensate_rows(arguments: int, unused_step: int, unused_thread: int) -> None:
    """Round the columns of a COMPENSATE record; `gptq.compensate_reference` is the twin."""
    a = carray(as_pointer(arguments), 1, COMPENSATE)[0]
    rows, n = a.rows, a.columns
    targets = carray(as_pointer(a.targets), (rows, n), np.float32)
    weights = carray(as_pointer(a.weights), (rows, n), np.float32)
    previous_errors = carray(as_pointer(a.previous_errors), (rows, n), np.float32)
    errors = carray(as_pointer(a.errors), (rows, n), np.float32)
    compensation = carray(as_pointer(a.compensation), (n, n), np.float32)
    scale = carray(as_pointer(a.scale), (rows, n), np.float32)
    minimum = carray(as_pointer(a.minimum), (rows, n), np.float32)
    levels = carray(as_pointer(a.levels), 2 * a.n_levels, np.float32)
    codes = carray(as_pointer(a.codes), (rows, n), np.uint8)
    top = np.float32(a.n_levels - 1)
    for r in range(rows):
        for i in range(n):
            j = n - 1 - i
            s = scale[r, j]
            x = targets[r, j] + minimum[r, j]
            if s != np.float32(0):
                x = x / s
            code = 0
            if a.uniform:
                x = x - levels[0] + np.float32(0.5)
                code = int(min(max(x, np.float32(0)), top))
            else:
                for k in range(a.n_levels, 2 * a.n_levels - 1):
                    code += levels[k] < x
            codes[r, j] = code
            error = weights[r, j] - (s * levels[code] - minimum[r, j])
            errors[r, j] = error
            change = error - previous_errors[r, j]
            for k in range(j):
                targets[r, k] += change * compensation[j, k]
