"""What it would take to train a model of so many parameters: tokens, operations, and a rough price.

Sources: Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models" (arXiv 2203.15556): about 20
tokens a parameter are compute-optimal, and the loss L(N, D) of its third approach; Kaplan et al. 2020,
"Scaling Laws for Neural Language Models" (arXiv 2001.08361): 6 operations a parameter and token, 2 of them
forwards and 4 backwards; Rajbhandari et al. 2020, "ZeRO" (arXiv 1910.02054): 16 bytes a parameter in training
with Adam in mixed precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

OPTIMAL_TOKENS = 20  # a parameter
OPERATIONS = 6  # a parameter and token; those of attention scores are not counted
TRAINING_BYTES = 16  # a parameter: weights and gradients in 16 bits, weights and two moments in 32
RATIOS = (("compute-optimal", 20), ("over-trained ×10", 200), ("over-trained ×100", 2000))  # tokens/parameter


@dataclass(frozen=True)
class Assumptions:
    """What the price is computed from: no facts about a model, but the weakest part of the estimate."""

    gpu: str = "H100 SXM"
    peak_flops: float = 989e12  # a second, dense bfloat16, of NVIDIA's data sheet
    utilisation: float = 0.4  # share of the peak that a good training run reaches
    dollars_per_hour: float = 2.5  # rent of one GPU


@dataclass(frozen=True)
class TrainingRun:
    """One training run. `loss`: nats a token, as the fit of Hoffmann et al. has it for their text and their
    tokens. `optimal_params`: the size that the same operations train best."""

    label: str
    tokens_per_param: int
    tokens: float
    flops: float
    loss: float
    optimal_params: float
    gpu_hours: float
    dollars: float


@dataclass(frozen=True)
class TrainingEstimate:
    """The runs of a model of `n_params` parameters, of which a token goes through `n_active`.

    The law was fitted to models without experts; for others it is taken of the active parameters.
    """

    n_params: int
    n_active: int
    memory: int  # bytes of weights, gradients and optimizer, without activations
    assumptions: Assumptions
    runs: tuple[TrainingRun, ...]


def training_estimate(
    n_params: int, n_active: int, assumptions: Assumptions | None = None
) -> TrainingEstimate:
    """The estimate for a model. ValueError without parameters."""
    if not 0 < n_active <= n_params:
        raise ValueError(f"there is nothing to train in {n_params} parameters, {n_active} of them active")
    assumptions = assumptions or Assumptions()
    runs = tuple(_run(label, ratio, n_active, assumptions) for label, ratio in RATIOS)
    return TrainingEstimate(n_params, n_active, TRAINING_BYTES * n_params, assumptions, runs)


def expected_loss(n_params: float, tokens: float) -> float:
    """L(N, D) = E + A / N^α + B / D^β, in nats a token (Hoffmann et al. 2022, appendix D.3)."""
    return 1.69 + 406.4 / n_params**0.34 + 410.7 / tokens**0.28


def _run(label: str, ratio: int, n: int, assumptions: Assumptions) -> TrainingRun:
    tokens = float(ratio * n)
    flops = OPERATIONS * n * tokens
    hours = flops / (assumptions.peak_flops * assumptions.utilisation) / 3600
    return TrainingRun(
        label=label,
        tokens_per_param=ratio,
        tokens=tokens,
        flops=flops,
        loss=expected_loss(n, tokens),
        optimal_params=sqrt(flops / (OPERATIONS * OPTIMAL_TOKENS)),
        gpu_hours=hours,
        dollars=hours * assumptions.dollars_per_hour,
    )
