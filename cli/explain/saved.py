"""`llm explain --html`: one page of an inspection, with its data in it, to be kept or sent to somebody."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from .subject import Subject
from .tokens import LONGEST_WORD

MOST_TOKENS = 1024  # of prompt and answer
MOST_WEIGHTS = 1 << 20  # attention weights, of five bytes each
TOP = 40  # tokens of each distribution
MOST_MAPPED, NEAR = 64, 5


def page_data(subject: Subject) -> dict[str, Any]:
    """What the page shows: prompt and answer inspected, with all layers and, as far as there is room, all
    attention; and what belongs to the model. A usage error for too many tokens."""
    from ...runtime.inspection.attention import AttentionChoice
    from ...runtime.inspection.embeddings import embedding_table, embeddings_data
    from ...runtime.inspection.rope import rope_data
    from ...runtime.sizing.sizes import model_sizes
    from ...runtime.sizing.traffic import timing_data
    from .beams import facts as beams

    model, whole = subject.model, [*subject.ids, *subject.answer.ids]
    n, config = len(whole), subject.model.config
    if n > MOST_TOKENS:
        raise typer.BadParameter(
            f"prompt and answer have {n} tokens, and a page holds up to {MOST_TOKENS}", param_hint="--html"
        )
    n_rows = min(n, MOST_WEIGHTS // (config.n_layers * config.n_heads * n))
    rows = AttentionChoice(rows=range(n - n_rows, n)) if n_rows else False
    seen = model.inspect(whole, top=TOP, lens=True, attention=rows)
    mapped = list(dict.fromkeys(whole))[-MOST_MAPPED:]
    table = embedding_table(model.engine.machine.program)
    return {
        "title": f"{model.name}: {subject.text[:80]}",
        "inspection": {
            "n_prompt": len(subject.ids),
            "timing": timing_data(model.engine, subject.stats) if subject.stats else None,
            "merges": subject.tokenizer.merge_steps(subject.text, LONGEST_WORD),
            **seen.data(subject.tokenizer),
        },
        "facts": {"sizes": asdict(model_sizes(model.path, subject.name)), "rope": rope_data(config)},
        "map": embeddings_data(table, mapped, NEAR, subject.spelled, subject.tokenizer.vocab_size),
        "beams": beams(subject),
    }


def write_page(path: Path, data: dict[str, Any]) -> int:
    """Write the page, which appears complete; its size in bytes. OSError."""
    from ...quant.safe_files import NewFile
    from ...runtime.inspection.page.document import document

    page = document(data)
    with NewFile(path) as file:
        file.write(page)
    return len(page)
