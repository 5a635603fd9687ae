"""The view "cache": the memory of keys and values, by layer, by context and by type."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ...quant.units import human_bytes
from ..console.wording import count
from .page import DIM, Page
from .subject import Subject


def facts(subject: Subject) -> dict[str, Any]:
    from ...runtime.sizing.sizes import model_sizes

    sizes = model_sizes(subject.model.path, subject.name)
    data = subject.seen.data()
    return {
        "now": data["cache"],
        "n_tokens": len(subject.seen.ids),
        "attention": [asdict(group) for group in sizes.attention],
        "kv_per_token": dict(sizes.kv_per_token),
        "by_context": {
            str(n): {kind: sizes.cache_bytes(n, kind) for kind in sizes.kv_per_token} for n in sizes.contexts
        },
        "state_bytes": sizes.state_bytes,
        "states": data["states"],
        "experts": data["experts"],
    }


def draw(page: Page, found: dict[str, Any]) -> None:
    page.heading("KV cache")
    now = found["now"]
    pages = f"{count(now['pages'], 'page')} of {now['page_size']} tokens in {now['kv_type']}"
    page.text(
        f"{count(found['n_tokens'], 'token')} take {pages}: "
        f"{human_bytes(now['bytes'])} in all layers together."
    )
    groups = found["attention"]
    if groups:
        page.line()
        rows = [
            [
                group["kind"],
                _ranges(group["layers"]),
                f"{group['heads']}/{group['kv_heads']}",
                str(group["head_dim"]),
                f"{group['window']} tokens" if group["window"] else "all",
                str(group["cached"]),
            ]
            for group in groups
        ]
        columns = [0, 1, 2, 3, 4, 5] if page.width >= 66 else [0, 1, 2, 5]
        header = ["kind", "layers", "heads/kv", "head size", "sees", "numbers/token"]
        page.table([header[i] for i in columns], [[row[i] for i in columns] for row in rows])
    largest = max((layer["bytes"] for layer in now["layers"]), default=1)
    if len({layer["bytes"] for layer in now["layers"]}) > 1:
        page.line()
        for layer in now["layers"]:
            page.line(
                (f"{layer['layer']:>5} ", DIM),
                page.bar(layer["bytes"] / largest, 20),
                f" {human_bytes(layer['bytes'])}",
            )
    contexts = found["by_context"]
    if contexts and found["kv_per_token"]:
        page.heading("By context, in each type")
        kinds = list(found["kv_per_token"])
        whole = max(max(row.values()) for row in contexts.values()) or 1
        bar = max(0, min(30, page.width - 12 - 10 * len(kinds)))
        rows = [
            [n, *(human_bytes(row[kind]) for kind in kinds), page.bar(max(row.values()) / whole, bar)]
            for n, row in contexts.items()
        ]
        page.table(["tokens", *kinds, ""], rows, right=range(len(kinds) + 1))
    if found["state_bytes"]:
        page.text(f"Recurrent states: {human_bytes(found['state_bytes'])} a sequence, whatever its length.")


def _ranges(numbers: list[int] | tuple[int, ...]) -> str:
    """ "0-4, 6" of consecutive numbers."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1][1:] = [n]
        else:
            parts.append([n])
    shown = ["-".join(map(str, part)) for part in parts]
    return ", ".join(shown) if len(shown) <= 4 else f"{', '.join(shown[:3])}, … ({len(numbers)})"
