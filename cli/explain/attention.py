"""The view "attention": who looks at whom, in which layer and head."""

from __future__ import annotations

from typing import Any

from .page import DIM, Page, level, percent
from .subject import Subject

LINKS = 12
LETTERS = {"previous": "P", "first": "F", "own": "O", "induction": "I", "": "."}
MEANING = (
    "P: the previous token; F: the first one; O: itself; I: what followed the same token before (induction); "
    ".: none of these takes half of the weight"
)


def facts(subject: Subject) -> dict[str, Any]:
    """Heads by what they look at, the strongest links, and the weights of one head."""
    from ...runtime.inspection.data import attention_data
    from ...runtime.inspection.heads import head_summaries, strongest_links

    seen = subject.seen
    tokens = [subject.token_of(id_) for id_ in seen.ids]
    if not seen.attention:
        return {"tokens": tokens, "heads": [], "links": [], "map": None}
    summaries = [s for each in seen.attention.values() for s in head_summaries(each, seen.ids.tolist())]
    layer, head = _chosen(subject, summaries)
    weights = attention_data(seen.attention[layer])
    links = strongest_links(seen.attention, LINKS)
    return {
        "tokens": tokens,
        "heads": [
            {
                "layer": s.layer,
                "head": s.head,
                "kind": s.kind,
                **{k: _round(getattr(s, k)) for k in ("previous", "first", "own", "induction", "entropy")},
            }
            for s in summaries
        ],
        "links": [
            {
                "layer": k.layer,
                "head": k.head,
                "row": k.row,
                "position": k.position,
                "weight": round(k.weight, 4),
            }
            for k in links
        ],
        "map": {"layer": layer, "head": head, "rows": weights["rows"], "weights": weights["weights"][head]},
    }


def _round(value: float) -> float | None:
    return round(value, 4) if value == value else None


def _chosen(subject: Subject, summaries: list[Any]) -> tuple[int, int]:
    """The layer and head whose weights are drawn: those asked for, or the head with the clearest pattern
    beside the first token and itself."""
    import typer

    choices, attention = subject.choices, subject.seen.attention
    if choices.layer is not None and choices.layer not in attention:
        layers = ", ".join(map(str, attention))
        raise typer.BadParameter(f"the layers with attention are {layers}", param_hint="--layer")
    fitting = [s for s in summaries if choices.layer in (None, s.layer) and choices.head in (None, s.head)]
    if choices.head is not None:
        n = next(iter(attention.values())).n_heads
        if not 0 <= choices.head < n:
            raise typer.BadParameter(f"heads are numbered from 0 to {n - 1}", param_hint="--head")
    if not fitting:
        return choices.layer if choices.layer is not None else next(iter(attention)), choices.head or 0
    best = max(fitting, key=lambda s: max(s.previous, s.induction if s.induction == s.induction else 0.0))
    return best.layer, best.head


def draw(page: Page, found: dict[str, Any]) -> None:
    page.heading("Attention")
    if found["map"] is None:
        page.text("This model has no layers with attention.")
        return
    if found["heads"]:
        _heads(page, found["heads"])
    _map(page, found["map"], found["tokens"])
    if found["links"]:
        page.heading("Strongest links, without the first token and a token's own")
        tokens = found["tokens"]
        rows = [
            [
                percent(link["weight"]),
                str(link["layer"]),
                str(link["head"]),
                _named(page, tokens, link["row"]),
                _named(page, tokens, link["position"]),
            ]
            for link in found["links"]
        ]
        page.table(["", "layer", "head", "token", "looks at"], rows, right=(0, 1, 2))


def _named(page: Page, tokens: list[dict[str, Any]], at: int) -> str:
    return f"{at} {page.visible(tokens[at]['text'], 10)}"


def _heads(page: Page, heads: list[dict[str, Any]]) -> None:
    """A line a layer, a letter a head."""
    page.text(MEANING, DIM)
    page.line()
    layers: dict[int, list[dict[str, Any]]] = {}
    for each in heads:
        layers.setdefault(each["layer"], []).append(each)
    most = max(map(len, layers.values()))
    gap = " " if 6 + 2 * most <= page.width else ""
    page.line(("layer " + gap.join(str(h % 10) for h in range(most)), DIM))
    for layer, row in layers.items():
        letters = [
            (
                LETTERS[h["kind"]] + gap,
                level(max(h[k] or 0 for k in ("previous", "own", "induction")))
                if h["kind"] not in ("", "first")
                else DIM,
            )
            for h in row
        ]
        page.line(f"{layer:>5} ", *letters)


def _map(page: Page, drawn: dict[str, Any], tokens: list[dict[str, Any]]) -> None:
    """A heat map of one head: a line a row, a character a position; as many of the last as fit."""
    page.heading(
        f"Layer {drawn['layer']}, head {drawn['head']}: each token (down) and where it looks (across)"
    )
    name = 10 if page.width < 60 else 14
    columns = max(4, (page.width - name - 6) // 2)
    rows = drawn["rows"][-columns:]
    first = max(0, len(tokens) - columns)
    edges = ((0.02, "2%"), (0.2, "20%"), (0.4, "40%"), (0.6, "60%"), (0.8, "80% and more"))
    page.text("  ".join(f"{page.shade(share)} {text}" for share, text in edges), DIM)
    marks = "".join(f"{i:<10}" for i in range(-(-first // 5) * 5, len(tokens), 5))
    page.line((" " * (name + 5 + 2 * (-first % 5)) + marks, DIM))
    for row in rows:
        weights = drawn["weights"][drawn["rows"].index(row)]
        cells = [(page.shade(w) * 2, "") for w in weights[first : row + 1]]
        label = page.visible(tokens[row]["text"], name)
        page.line((f"{row:>4} ", DIM), label.ljust(name), *cells)
    if first:
        page.text(f"Positions before {first} do not fit.", DIM)
