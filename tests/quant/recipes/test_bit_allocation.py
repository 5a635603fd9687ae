"""Formats under a budget of bytes."""

from __future__ import annotations

import numpy as np
import pytest

from kukri.quant.formats import FORMATS
from kukri.quant.gguf.gathered import GatheredTensor
from kukri.quant.recipes.bit_allocation import allocate_bits
from kukri.quant.recipes.recipes import PlannedTensor


def planned(name: str, width: int) -> PlannedTensor:
    tensor = GatheredTensor.from_values(f"{name}.weight", np.zeros((16, width), np.float32))
    return PlannedTensor(tensor, FORMATS["Q4_0"])


def test_budget_is_kept_and_used() -> None:
    plan = [planned("a", 64), planned("b", 256), planned("c", 64)]
    weights = sum(each.tensor.n_weights for each in plan)
    for bits in (4.5, 5.0, 6.1, 9.0):
        chosen = allocate_bits(plan, int(bits * weights / 8))
        used = sum(each.record.n_bytes for each in chosen)
        assert used <= bits * weights / 8
        if bits < 8.5:
            assert used > (bits - 1.1) * weights / 8
    assert {each.format.name for each in chosen} == {"Q8_0"}
    with pytest.raises(ValueError, match="budget"):
        allocate_bits(plan, int(3 * weights / 8))
