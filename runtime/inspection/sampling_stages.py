"""What each step of a sampler leaves of one distribution, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..engine.sampling.params import SamplingParams
from ..engine.sampling.sampler import Sampler


@dataclass(frozen=True)
class Stage:
    """The tokens that a step leaves, int32 [kept], the likeliest first, and their probabilities float32."""

    name: str
    ids: np.ndarray
    probabilities: np.ndarray


def sampling_stages(logits: np.ndarray, params: SamplingParams, history: Sequence[int] = ()) -> list[Stage]:
    """The distribution of `logits`, float32 [vocab]; what each of temperature, top-k, top-p and min-p of
    `params` leaves of it by itself; and what all steps of `params` leave together, of which `sample` draws.

    Raises BadLogits, and ValueError for parameters that have text where ids are needed.
    """
    off = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    alone = {
        "model": off,
        f"temperature {params.temperature:g}": replace(off, temperature=params.temperature),
        f"top-k {params.top_k}": replace(off, top_k=params.top_k),
        f"top-p {params.top_p:g}": replace(off, top_p=params.top_p),
        f"min-p {params.min_p:g}": replace(off, min_p=params.min_p),
        "together": params,
    }
    stages = []
    for name, each in alone.items():
        ids, probabilities = Sampler(each).remaining(logits, history)
        stages.append(Stage(name, ids.astype(np.int32), probabilities.astype(np.float32)))
    return stages
