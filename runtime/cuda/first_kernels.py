"""Which kernels a start waits for, and in which order the others are compiled behind it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .compile.kernel import Kernels
from .lowering.base import DECODE_ROWS
from .lowering.program import Lowering
from .step import TopKRequest
from .top_k import FIRST_TOP_K, TOP_K_SIZES

USUAL_PROMPTS = (32, 64, 128, 256)  # rows, each with tiles of its own


def compile_first(
    kernels: Kernels,
    lowering: Lowering,
    fetch: Callable[[], object],
    top_k: Callable[[int, TopKRequest], object],
    background: bool,
) -> None:
    """Compile the kernels of decoding and what prompts of all sizes need; then, in the background and in
    the order in which they are likely to be needed, those of the other usual steps. With many sequences
    or several cards all of them are compiled at once, since all shapes are planned, or wait for others.

    `fetch` makes the launches that fetch a step's inputs, and `top_k` those that select from so many rows.
    """
    capacity, launches = lowering.capacity, lowering.launches
    vocab = lowering.program.logits.width
    prompts = sorted({min(capacity.max_rows, n) for n in (*USUAL_PROMPTS, capacity.max_rows)})
    many = capacity.max_sequences > DECODE_ROWS
    # Of 2 and 4 rows, too: drafts make such steps.
    rows = [n for n in (2, 4, 8, DECODE_ROWS, *((32, 64, 128) if many else ())) if n <= capacity.max_logits]
    asks: list[Callable[[], object]] = [
        *(partial(launches, n, 1, False, True) for n in prompts[:2]),
        *(partial(top_k, 1, TopKRequest(k, vocab)) for k in FIRST_TOP_K),
        *(partial(launches, n, 1, False, True) for n in prompts[2:]),
        *(partial(launches, n, n, True) for n in rows),
        *(partial(launches, n, 1, False) for n in (2, DECODE_ROWS) if n <= capacity.max_rows),
        *(partial(top_k, 1, TopKRequest(k, vocab)) for k in TOP_K_SIZES),
    ]

    def first() -> object:
        return fetch(), launches(1, 1, True)

    if many or lowering.group:
        kernels.compile_all(lambda: [first(), *(ask() for ask in asks)])
        return
    alike = [partial(launches, n, 1, False, True) for n in prompts]
    kernels.compile_in_order(repr(capacity), first, alike, asks)
    if not background:
        kernels.finish()
