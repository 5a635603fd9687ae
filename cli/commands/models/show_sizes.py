"""`llm show --memory` and `--training`: what a model takes to run, and what its training would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....quant.units import human_bytes
from ...console import terminal
from ...console.description import human_count
from ...console.table import fits, pairs, records, table

if TYPE_CHECKING:
    from ....runtime.sizing.sizes import AttentionGroup, ModelSizes, WeightSize
    from ....runtime.sizing.training import TrainingEstimate, TrainingRun

Row = tuple[str, ...]


def show_sizes(path: Path, name: str, memory: bool, training: bool) -> tuple[dict[str, Any], str]:
    """What is asked for of the model at `path`, for programs and for people. Errors as for `model_sizes`."""
    from ....runtime.sizing.sizes import model_sizes
    from ....runtime.sizing.training import training_estimate

    sizes = model_sizes(path, name)
    facts: dict[str, Any] = {"name": sizes.name}
    parts = []
    if memory:
        facts["memory"] = _memory_facts(sizes)
        parts.append(_memory_text(sizes))
    if training:
        estimate = training_estimate(sizes.n_params, sizes.n_active)
        facts["training"] = asdict(estimate) | {"is_estimate": True}
        parts.append(_training_text(estimate))
    return facts, "\n".join(parts)


def _memory_facts(sizes: ModelSizes) -> dict[str, Any]:
    facts = asdict(sizes)
    facts["kv_cache"] = {
        str(n): {kind: sizes.cache_bytes(n, kind) for kind in sizes.kv_per_token} for n in sizes.contexts
    }
    return facts


def _memory_text(sizes: ModelSizes) -> str:
    """Three tables: weights, attention, cache."""
    weights = [_weight_row(each, each.recipe or "as it is") for each in (sizes.stored, *sizes.recipes)]
    parts = [_fitted(("WEIGHTS", "SIZE", "BITS/WEIGHT", "BYTES BY FORMAT"), weights, (1, 2))]
    if sizes.unplanned:
        parts.append(f"No other types: {sizes.unplanned}\n")
    if sizes.attention:
        header = ("ATTENTION", "LAYERS", "HEADS", "KV HEADS", "HEAD SIZE", "WINDOW", "NUMBERS/TOKEN")
        parts.append(_fitted(header, [_attention_row(each) for each in sizes.attention], (1, 2, 3, 4, 5, 6)))
        kinds = list(sizes.kv_per_token)
        rows = [
            (f"{n}", *(human_bytes(sizes.cache_bytes(n, kind)) for kind in kinds)) for n in sizes.contexts
        ]
        parts.append(_fitted(("KV CACHE", *kinds), rows, range(len(kinds) + 1)))
    parts.append(pairs(_memory_notes(sizes)))
    return "\n".join(parts)


def _memory_notes(sizes: ModelSizes) -> list[tuple[str, str]]:
    notes = []
    if sizes.attention:
        notes.append(("cache", f"of one sequence, by tokens of context; pages of {sizes.page_tokens} tokens"))
    if sizes.cpu_share > 1:
        notes.append(
            ("on the CPU", f"the cache takes {sizes.cpu_share:.2f} times as much: values of their own")
        )
    if any(group.window for group in sizes.attention):
        notes.append(("windows", "save time, not memory: layers with a window keep all tokens"))
    if sizes.state_bytes:
        notes.append(("recurrent state", f"{human_bytes(sizes.state_bytes)} a sequence, whatever its length"))
    return notes


def _weight_row(size: WeightSize, label: str) -> Row:
    formats = ", ".join(f"{name} {human_bytes(n)}" for name, n in size.by_format.items())
    return label, human_bytes(size.n_bytes), f"{size.bits_per_weight:.2f}", formats


def _attention_row(group: AttentionGroup) -> Row:
    window = str(group.window) if group.window else "all"
    numbers = (len(group.layers), group.heads, group.kv_heads, group.head_dim)
    return group.kind, *map(str, numbers), window, str(group.cached) if group.cached else "shared"


def _training_text(estimate: TrainingEstimate) -> str:
    assumed, active = estimate.assumptions, ""
    if estimate.n_active < estimate.n_params:
        active = f", {human_count(estimate.n_active)} of them active"
    header = ("TRAINING", "TOKENS/PARAM", "TOKENS", "FLOPS", "LOSS", "BEST SIZE", "GPU HOURS", "COST")
    memory = f"{human_bytes(estimate.memory)} of weights, gradients and Adam's moments, without activations"
    price = (
        f"an estimate that may be off by a factor of two or more: {assumed.gpu} at {assumed.utilisation:.0%} "
        f"of {assumed.peak_flops / 1e12:.0f} TFLOPS, ${assumed.dollars_per_hour:.2f} an hour, one smooth run"
    )
    notes = [
        ("parameters", f"{human_count(estimate.n_params)}{active}"),
        ("memory", memory),
        ("FLOPs", "6 a parameter and token; those of attention scores are not counted"),
        ("loss", "nats a token, of the text and the tokens of the law's authors"),
        ("best size", "the parameters that the same FLOPs train to the least loss"),
        ("cost", price),
        ("law", "20 tokens a parameter are compute-optimal (Hoffmann et al. 2022, arXiv 2203.15556)"),
    ]
    return _fitted(header, [_run_row(run) for run in estimate.runs], range(1, 8)) + "\n" + pairs(notes)


def _run_row(run: TrainingRun) -> Row:
    return (
        run.label,
        f"{run.tokens_per_param}",
        human_count(round(run.tokens)),
        f"{run.flops:.1e}",
        f"{run.loss:.2f}",
        human_count(round(run.optimal_params)),
        f"~{run.gpu_hours:,.0f}" if run.gpu_hours >= 10 else f"~{run.gpu_hours:.1f}",
        f"~${run.dollars:,.0f}",
    )


def _fitted(header: Row, rows: Sequence[Row], right: Sequence[int]) -> str:
    """A table, or records where the terminal is too narrow for it."""
    text = table(header, rows, right)
    return text if fits(text, terminal.width()) else records(header, rows)
