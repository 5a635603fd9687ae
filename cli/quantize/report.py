"""What `llm quantize` says of a file that it writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...quant.units import human_bytes

if TYPE_CHECKING:
    from ...quant.recipes.quantize import QuantizedFile
    from ...quant.recipes.recipes import PlannedTensor


def remarks(planned: Sequence[PlannedTensor]) -> list[str]:
    """Lines about tensors that do not have the format that was asked for."""
    groups = Counter((p.note, p.format.name) for p in planned if p.note)
    lines = []
    for (note, form), n in groups.items():
        names = [p.name for p in planned if (p.note, p.format.name) == (note, form)]
        what = f"tensor {names[0]} is" if n == 1 else f"{n} tensors are"
        lines.append(f"{what} {form}: {note}")
    return lines


def summary(
    written: QuantizedFile, planned: Sequence[PlannedTensor], source_bytes: int, seconds: float
) -> str:
    """The closing line."""
    weights, seconds = Counter[str](), max(seconds, 1e-9)
    for each in planned:
        weights[each.format.name] += each.tensor.n_weights
    shares = ", ".join(
        f"{form} {100 * n / max(1, written.n_weights):.0f} %"
        for form, n in weights.most_common()
        if n * 200 >= written.n_weights
    )
    size = f"{human_bytes(written.n_bytes)}, {written.bits_per_weight:.2f} bits a weight ({shares})"
    return f"{size}; {seconds:.1f} s, {source_bytes / 1e6 / seconds:.0f} MB/s of source"
