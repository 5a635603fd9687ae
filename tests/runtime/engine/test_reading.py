"""Texts that are read together have the outputs that they have alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.errors import ContextExceeded
from kukri.runtime.engine.reading import Wanted
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.open_program import open_program

RNG = np.random.default_rng(1)
TEXTS = [RNG.integers(3, 256, n).tolist() for n in (5, 0, 1, 19, 2, 30, 7, 7, 1)]


@pytest.fixture(scope="module")
def engine_of(conformance: Callable[[str], Path]) -> Callable[..., Engine]:
    config, program = open_program(conformance("llama"), vectors=True)

    def make(chunk: int, pages: int = 16, sequences: int = 3) -> Engine:
        machine = ReferenceMachine(program, pages, page_size=8, max_sequences=sequences)
        table = PageTable(pages, sequences, page_size=8)
        return Engine(machine, table, config, context=32, prefill_chunk=chunk)

    return make


def outputs(engine: Engine, texts: list[list[int]], wanted: Wanted) -> list[list[tuple[int, np.ndarray]]]:
    got: list[list[tuple[int, np.ndarray]]] = [[] for _ in texts]
    engine.read(texts, wanted, lambda i, at, rows: got[i].append((at, rows.copy())))
    return got


@pytest.mark.parametrize(("chunk", "pages"), [(512, 16), (8, 16), (3, 4), (1, 4), (20, 5)])
def test_all_rows(engine_of: Callable[..., Engine], chunk: int, pages: int) -> None:
    alone = engine_of(512)
    expected = [outputs(alone, [text], "all")[0] for text in TEXTS]
    got = outputs(engine_of(chunk, pages), TEXTS, "all")
    for text, parts, whole in zip(TEXTS, got, expected, strict=True):
        if not text:
            assert parts == whole == []
            continue
        assert [at for at, _ in parts] == np.cumsum([0, *(len(rows) for _, rows in parts[:-1])]).tolist()
        np.testing.assert_allclose(np.concatenate([r for _, r in parts]), whole[0][1], atol=1e-5)


@pytest.mark.parametrize("chunk", [512, 4])
def test_first_and_last_rows(engine_of: Callable[..., Engine], chunk: int) -> None:
    engine = engine_of(chunk)
    every, first, last = (outputs(engine, TEXTS, wanted) for wanted in ("all", "first", "last"))
    for i, text in enumerate(TEXTS):
        if not text:
            assert first[i] == last[i] == []
            continue
        rows = np.concatenate([r for _, r in every[i]])
        ((at, row),) = first[i]
        assert at == 0
        np.testing.assert_allclose(row, rows[:1], atol=1e-5)
        ((at, row),) = last[i]
        assert at == len(text) - 1
        np.testing.assert_allclose(row, rows[-1:], atol=1e-5)


def test_the_table_is_empty_behind_a_failure(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(8)

    def fail(*_: object) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        engine.read(TEXTS, "all", fail)
    assert engine.table.free_pages == engine.table.n_pages
    with pytest.raises(ContextExceeded):
        engine.read([[3] * 33], "all", fail)
