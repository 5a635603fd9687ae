"""The result of `llm eval` for one model: a flat record that always has the same keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...runtime.evaluation.scores import Estimate, Evaluation
    from ..console.description import Description

Result = dict[str, Any]  # docs/evaluation.md says what the keys mean

KEYS = (
    "name", "path", "architecture", "quant", "size", "file_size", "n_params", "bits_per_weight",
    "device", "n_threads", "seconds", "windows", "scored", "scored_all",
    "perplexity", "perplexity_stderr", "perplexity_all", "perplexity_all_stderr",
    "kld", "kld_stderr", "kld_median", "kld_99", "kld_max", "mean_dp", "mean_dp_stderr",
    "rms_dp", "rms_dp_stderr", "same_top", "same_top_stderr", "perplexity_ratio", "perplexity_ratio_stderr",
)  # fmt: skip
NUMBERS = ("size", "file_size", "n_params", "bits_per_weight")  # of the files


def empty() -> Result:
    """A record with every key, all None."""
    return dict.fromkeys(KEYS)


def about_files(about: Description) -> Result:
    """The record's keys about a model's files; `size` is that of its tensors in bytes."""
    return {
        "architecture": about.architecture,
        "quant": about.quant,
        "size": about.n_bytes,
        "file_size": sum(path.stat().st_size for path in about.paths),
        "n_params": about.n_params,
        "bits_per_weight": round(about.bits_per_weight, 4),
    }


def about_saved(metadata: Mapping[str, str]) -> Result:
    """The record of the model whose logits were saved with this metadata."""
    told: Result = {key: metadata.get(key) for key in ("architecture", "quant")}
    for key in NUMBERS:
        try:
            told[key] = float(metadata[key]) if key == "bits_per_weight" else int(metadata[key])
        except (KeyError, ValueError):
            told[key] = None
    return empty() | told | {"name": metadata.get("model", ""), "device": "saved"}


def told_scores(scores: Evaluation, of_baseline: bool = False) -> Result:
    """The record's keys about token scores. The standard error of a single token is None."""
    half = scores.baseline_perplexity() if of_baseline else scores.perplexity()
    every = scores.baseline_perplexity(True) if of_baseline else scores.perplexity(True)
    n, tokens = scores.nll.shape
    result: Result = {
        "windows": n,
        "scored": n * (tokens - scores.first),
        "scored_all": n * tokens,
        **_estimate("perplexity", half),
        **_estimate("perplexity_all", every),
    }
    if of_baseline or scores.kld is None:
        return result
    told = scores.divergence()
    return {
        **result,
        **_estimate("kld", told.kld),
        "kld_median": told.kld_median,
        "kld_99": told.kld_99,
        "kld_max": told.kld_max,
        **_estimate("mean_dp", told.dp),
        **_estimate("rms_dp", told.dp_rms),
        **_estimate("same_top", told.same_top),
        **_estimate("perplexity_ratio", told.ratio),
    }


def _estimate(name: str, told: Estimate) -> Result:
    return {name: told.value, f"{name}_stderr": None if math.isnan(told.error) else told.error}
