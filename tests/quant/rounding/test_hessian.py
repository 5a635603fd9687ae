"""The Hessian, factorised in place, against NumPy's factorisation of a copy."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.rounding.hessian import prepare_hessian


@pytest.mark.parametrize("width", [1, 7, 256, 300, 700])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_factor(width: int, shrinkage: float) -> None:
    x = np.random.default_rng(width).standard_normal((2 * width + 3, width)).astype(np.float32)
    moments = x.T @ x / len(x)
    damping = 0.01 * np.diagonal(moments).mean() * np.eye(width)
    shrunk = (1 - shrinkage) * moments + shrinkage * np.diag(np.diagonal(moments)) + damping
    hessian = prepare_hessian(moments.copy(), shrinkage)
    assert sorted(hessian.order) == list(range(width))
    spread = np.diagonal(moments)[hessian.order]
    assert (np.diff(spread) >= 0).all()  # those that matter most are rounded first: from the end
    ordered = shrunk[hessian.order][:, hessian.order]
    lower = np.linalg.cholesky(ordered.astype(np.float64))
    own = np.diagonal(lower)
    assert np.allclose(hessian.importance[hessian.order], own**2, rtol=1e-4)
    assert np.allclose(np.tril(hessian.packed, -1), np.tril(lower / own, -1), atol=1e-5)
    for start in range(0, width, 64):
        here = slice(start, start + 64)
        assert np.allclose(hessian.columns(here), ordered[:, here], atol=1e-6)
        compensation = np.tril(hessian.compensation(here)[:64], -1)
        assert np.allclose(compensation, np.tril((lower / own)[here, here], -1), atol=1e-5)
