"""What a machine is told in one step: `Batch.check` lets no index out of range reach compiled kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kukri.runtime.engine.cache import Batch, PageTable

VOCAB = 10
LIMITS = {"n_pages": 4, "vocab": VOCAB, "max_rows": 3, "max_logits": 2}


@pytest.fixture
def table() -> PageTable:
    """Sequence 0 has room for 3 tokens, sequence 1 for 5."""
    table = PageTable(4, 2, page_size=4)
    table.extend(0, 3)
    table.extend(1, 5)
    return table


def batch(tokens, sequences, positions, logits=(), lengths=None) -> Batch:
    arrays = (np.array(each, np.int32) for each in (tokens, sequences, positions, logits))
    return Batch(*arrays, None if lengths is None else np.array(lengths, np.int32))


@pytest.mark.parametrize(
    "rows",
    [
        ([], [], []),
        ([0], [0], [0]),
        ([0], [0], [0], [0]),
        ([VOCAB - 1], [0], [2], [0]),
        ([VOCAB - 1], [1], [4]),
        ([0, VOCAB - 1, 1], [0, 1, 1], [2, 3, 4], [0, 2]),
        ([0, 1], [0, 0], [0, 1], [1], [3, 3]),
        ([3, 4, 5], [1, 1, 1], [0, 1, 2]),
    ],
)
def test_valid_steps(table: PageTable, rows: tuple[Any, ...]) -> None:
    batch(*rows).check(table, **LIMITS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        # Of one row
        (([-1], [0], [0], [0]), "a token is out"),
        (([VOCAB], [0], [0], [0]), "a token is out"),
        (([0], [-1], [0]), "a sequence is out"),
        (([0], [2], [0]), "a sequence is out"),
        (([0], [0], [-1]), "a position is out"),
        (([0], [0], [3]), "a position is out"),
        (([0], [1], [5]), "a position is out"),
        (([0], [0], [0], [-1]), "an index of logits"),
        (([0], [0], [0], [1]), "an index of logits"),
        (([0], [0], [0], [0, 1]), "an index of logits"),
        # Of several
        (([0, -1], [0, 0], [0, 1]), "a token is out"),
        (([VOCAB, 0], [0, 0], [0, 1]), "a token is out"),
        (([0, 0], [0, -1], [0, 1]), "a sequence is out"),
        (([0, 0], [2, 0], [0, 1]), "a sequence is out"),
        (([0, 0], [0, 0], [-1, 0]), "a position is out"),
        (([0, 0], [0, 0], [2, 3]), "a position is out"),
        (([0, 0], [0, 0], [2, 4]), "a position is out"),
        (([0, 0], [0, 0], [0, 1], [-1, 0]), "an index of logits"),
        (([0, 0], [0, 0], [0, 1], [1, 2]), "an index of logits"),
        (([0, 0], [0, 0], [0, 1], [3]), "an index of logits"),
        # Shapes
        (([0] * 4, [1] * 4, [0, 1, 2, 3]), "up to 3 rows, not 4"),
        (([0, 0], [0], [0, 1]), "up to 3 rows, not 2"),
        (([0, 0], [0, 0], [0]), "up to 3 rows, not 2"),
        (([0, 0], [0, 0, 0], [0, 1]), "up to 3 rows, not 2"),
        (([0, 0], [0, 0], [0, 1], [], [2]), "1 lengths for 2 rows"),
        (([0, 0, 0], [1, 1, 1], [0, 1, 2], [0, 1, 2]), "up to 2 rows, not 3"),
    ],
)
def test_steps_that_would_read_elsewhere(table: PageTable, rows: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch(*rows).check(table, **LIMITS)


@pytest.mark.parametrize(("tokens", "sequences", "positions"), [([7], [1], [4]), ([7, 7], [1, 1], [3, 4])])
def test_optional_limits(table: PageTable, tokens, sequences, positions) -> None:
    """A model without an embedding takes any token; learned positions end."""
    step = batch(tokens, sequences, positions)
    limits = LIMITS | {"vocab": 0}
    step.check(table, **limits)
    step.check(table, **limits, n_positions=5)
    with pytest.raises(ValueError, match="knows 4 positions"):
        step.check(table, **limits, n_positions=4)
    with pytest.raises(ValueError, match="vocabulary of 7"):
        step.check(table, **LIMITS | {"vocab": 7})
    step.check(table, **LIMITS | {"vocab": 8})


def test_a_table_of_more_pages_than_the_machine_has(table: PageTable) -> None:
    with pytest.raises(ValueError, match="hands out 4 pages, the machine has 3"):
        batch([], [], []).check(table, **LIMITS | {"n_pages": 3})
    batch([], [], []).check(table, **LIMITS | {"n_pages": 5})


def test_lengths_of_sequences() -> None:
    step = batch([0] * 4, [0, 2, 0, 2], [3, 0, 4, 1])
    np.testing.assert_array_equal(step.sequence_lengths(), [5, 2, 5, 2])
    step = batch([0] * 4, [0, 2, 0, 2], [3, 0, 4, 1], [], [9, 1, 9, 1])
    np.testing.assert_array_equal(step.sequence_lengths(), [9, 2, 9, 2])
    assert not len(batch([], [], []).sequence_lengths())


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_a_table_needs_a_page_a_sequence_and_a_token(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least one page"):
        PageTable(*sizes)
    PageTable(1, 1, 1)
