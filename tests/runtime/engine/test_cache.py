"""PageTable: pages have one owner, sequences stay apart, and nothing changes when something fails."""

import numpy as np
import pytest

from kukri.runtime.engine.cache import PAGE_SIZE, Batch, PageTable
from kukri.runtime.engine.errors import CacheFull


def owned(table: PageTable) -> list[int]:
    return sorted(table.blocks[table.blocks >= 0].tolist())


def check(table: PageTable) -> None:
    """Every page is held once or free, and a sequence holds exactly the pages its length needs."""
    pages = owned(table)
    assert len(set(pages)) == len(pages)
    assert table.free_tokens == (table.n_pages - len(pages)) * table.page_size
    for blocks, length in zip(table.blocks, table.lengths, strict=True):
        held = -(-int(length) // table.page_size)
        assert (blocks[:held] >= 0).all()
        assert (blocks[held:] == -1).all()


def test_pages_are_handed_out_lowest_first():
    table = PageTable(4, page_size=8)
    table.extend(0, 17)
    assert table.blocks[0].tolist() == [0, 1, 2, -1]
    assert table.lengths.tolist() == [17]


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (7, 1), (8, 1), (9, 2), (16, 2), (32, 4)])
def test_extend_takes_only_what_it_needs(tokens, pages):
    table = PageTable(4, page_size=8)
    table.extend(0, tokens)
    assert len(owned(table)) == pages
    check(table)


def test_token_by_token_is_as_good_as_at_once():
    one, many = PageTable(5, page_size=4), PageTable(5, page_size=4)
    many.extend(0, 18)
    for _ in range(18):
        one.extend(0, 1)
    assert one.blocks.tolist() == many.blocks.tolist()
    check(one)


def test_full_changes_nothing():
    table = PageTable(3, 2, page_size=8)
    table.extend(0, 10)
    before = table.blocks.copy()
    with pytest.raises(CacheFull, match="9 tokens need 2 pages, 1 are free"):
        table.extend(1, 9)
    assert table.lengths.tolist() == [10, 0]
    np.testing.assert_array_equal(table.blocks, before)
    table.extend(0, 6)  # the room in the last page is still there
    table.extend(1, 8)
    assert table.free_tokens == 0


@pytest.mark.parametrize("length", [0, 1, 8, 9, 16, 19, 20])
def test_truncate_gives_back_whole_pages(length):
    table = PageTable(4, page_size=8)
    table.extend(0, 20)
    table.truncate(0, length)
    assert table.lengths.tolist() == [length]
    check(table)
    table.extend(0, 20 - length)
    assert table.blocks[0].tolist() == [0, 1, 2, -1]  # the same pages again: no fresh memory is touched


def test_truncate_to_more_does_nothing():
    table = PageTable(4, page_size=8)
    table.extend(0, 5)
    table.truncate(0, 30)
    assert table.lengths.tolist() == [5]
    check(table)


def test_negative_sizes_are_refused():
    table = PageTable(4)
    table.extend(0, 3)
    with pytest.raises(ValueError, match="-1"):
        table.extend(0, -1)
    with pytest.raises(ValueError, match="-2"):
        table.truncate(0, -2)
    assert table.lengths.tolist() == [3]
    for sizes in [(0, 1, 64), (4, 0, 64), (4, 1, 0)]:
        with pytest.raises(ValueError, match="at least one"):
            PageTable(*sizes)


def test_default_page_size():
    table = PageTable(2)
    assert table.free_tokens == 2 * PAGE_SIZE


def test_random_work_on_several_sequences():
    random = np.random.default_rng(0)
    table = PageTable(12, 3, page_size=4)
    lengths = [0, 0, 0]
    for _ in range(2000):
        sequence = int(random.integers(3))
        if random.random() < 0.6:
            n = int(random.integers(9))
            try:
                table.extend(sequence, n)
            except CacheFull:
                continue
            lengths[sequence] += n
        else:
            lengths[sequence] = min(lengths[sequence], int(random.integers(30)))
            table.truncate(sequence, lengths[sequence])
        assert table.lengths.tolist() == lengths
        check(table)


def test_lengths_of_sequences():
    def lengths(positions, sequences, told=None):
        arrays = [np.array(a, np.int32) for a in ([0] * len(positions), sequences, positions, [])]
        told = None if told is None else np.array(told, np.int32)
        return Batch(*arrays, told).sequence_lengths().tolist()

    assert lengths([0, 1, 2], [0, 0, 0]) == [3, 3, 3]
    assert lengths([4, 9, 5], [2, 0, 2]) == [6, 10, 6]
    assert lengths([4, 9, 5], [2, 0, 2], [8, 10, 8]) == [8, 10, 8]
    assert lengths([4, 9, 5], [2, 0, 2], [0, 0, 0]) == [6, 10, 6]
    assert lengths([], []) == []
