"""The paged KV cache: which page of the pool holds which tokens of which sequence.

The contents of the pages belong to the machine. The table only hands out page numbers, so that all machines
use the same one. (Kwon et al. 2023, "Efficient Memory Management for LLM Serving with PagedAttention".)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .errors import CacheFull

PAGE_SIZE = 64  # tokens a page
NO_LOGITS = np.empty(0, np.int32)  # logits_indices of a step that only fills the cache


@dataclass(frozen=True)
class Batch:
    """The rows of one step: any mix of prefill chunks and decode tokens of several sequences.

    The rows of a sequence are in order of position. `logits_indices` are the rows whose logits are asked for,
    in ascending order; there may be none. `lengths` is the length of each row's sequence at the end of its
    prompt, for a prompt that is prefilled in several steps: the rotary embeddings of some models depend on
    it.
    """

    tokens: np.ndarray  # int32 [n]
    sequences: np.ndarray  # int32 [n], rows of PageTable.blocks
    positions: np.ndarray  # int32 [n]
    logits_indices: np.ndarray  # int32 [m]
    lengths: np.ndarray | None = None  # int32 [n], above the positions; None: sequences end with this step
    types: np.ndarray | None = None  # int32 [n], token types of models that have them; None: all are 0

    def types_of_rows(self) -> np.ndarray:
        """The token type of each row, int32 [n]."""
        return np.zeros(len(self.tokens), np.int32) if self.types is None else self.types

    def sequence_lengths(self) -> np.ndarray:
        """The length of each row's sequence, int32 [n]; all rows of a sequence have the same."""
        reached = self.positions + 1 if self.lengths is None else np.maximum(self.lengths, self.positions + 1)
        lengths = np.zeros(int(self.sequences.max(initial=0)) + 1, np.int32)
        np.maximum.at(lengths, self.sequences, reached)
        return lengths[self.sequences]

    def check(
        self, table: PageTable, n_pages: int, vocab: int, max_rows: int, max_logits: int, n_positions: int = 0
    ) -> None:
        """Raise ValueError unless a machine of `n_pages` pages can run this step.

        `vocab` is the number of token ids (0: the model does not embed tokens), `n_positions` that of learned
        positions (0: there is no limit). Compiled kernels do not check their indices, so that all are checked
        here.
        """
        n = len(self.tokens)
        if not len(self.sequences) == len(self.positions) == n <= max_rows:
            raise ValueError(f"a step takes up to {max_rows} rows, not {n}")
        if self.lengths is not None and len(self.lengths) != n:
            raise ValueError(f"{len(self.lengths)} lengths for {n} rows")
        if len(self.logits_indices) > max_logits:
            raise ValueError(
                f"a step gives logits for up to {max_logits} rows, not {len(self.logits_indices)}"
            )
        if table.n_pages > n_pages:
            raise ValueError(f"the table hands out {table.n_pages} pages, the machine has {n_pages}")
        if not n or (n == 1 and self._is_valid_row(table, vocab, n_positions)):
            return
        if n_positions and int(self.positions.max()) >= n_positions:
            raise ValueError(f"the model knows {n_positions} positions, and no more")
        if vocab and not 0 <= self.tokens.min() <= self.tokens.max() < vocab:
            raise ValueError(f"a token is out of the range of the vocabulary of {vocab}")
        if not 0 <= self.sequences.min() <= self.sequences.max() < len(table.lengths):
            raise ValueError(f"a sequence is out of the range of the table's {len(table.lengths)}")
        if self.positions.min() < 0 or (self.positions >= table.lengths[self.sequences]).any():
            raise ValueError("a position is out of the range of its sequence")
        if len(self.logits_indices) and not 0 <= self.logits_indices.min() <= self.logits_indices.max() < n:
            raise ValueError("an index of logits is out of range")

    def _is_valid_row(self, table: PageTable, vocab: int, n_positions: int) -> bool:
        """Whether a batch of one row passes `check`.

        It is tested without NumPy, whose calls would take a tenth of a decode step on a GPU.
        """
        token, sequence, position = self.tokens.item(), self.sequences.item(), self.positions.item()
        if not (0 <= sequence < len(table.lengths) and 0 <= position < table.lengths.item(sequence)):
            return False
        in_range = (not vocab or 0 <= token < vocab) and (not n_positions or position < n_positions)
        return in_range and (
            not len(self.logits_indices)
            or (len(self.logits_indices) == 1 and self.logits_indices.item() == 0)
        )


class PageTable:
    """Block tables of up to `max_sequences` sequences over a pool of `n_pages` pages.

    `blocks`, int32 [max_sequences, n_pages]: `blocks[s, i]` is the page of positions i·page_size … of
    sequence s (-1: none yet). `lengths`, int32 [max_sequences], is the number of tokens that each sequence
    has room for. Low page numbers are handed out first, so that a pool whose memory is committed on first
    touch only takes the memory of the pages in use.

    A page has a count of references: one for each sequence whose block table has it, and those of `retain`.
    It is free when there are none. Only the sequence that got a page by `extend` writes into it; those that
    `adopt` it read it.
    """

    def __init__(self, n_pages: int, max_sequences: int = 1, page_size: int = PAGE_SIZE) -> None:
        if n_pages < 1 or max_sequences < 1 or page_size < 1:
            raise ValueError(
                "a page table needs at least one page, one sequence and one token a page, "
                f"not {n_pages}, {max_sequences} and {page_size}"
            )
        self.page_size = page_size
        self.n_pages = n_pages
        self.blocks = np.full((max_sequences, n_pages), -1, np.int32)
        self.lengths = np.zeros(max_sequences, np.int32)
        self.references = np.zeros(n_pages, np.int32)  # by page
        self._free = list(range(n_pages - 1, -1, -1))  # a stack, the next page last

    @property
    def max_sequences(self) -> int:
        """The number of sequences that there is room for."""
        return len(self.lengths)

    @property
    def free_pages(self) -> int:
        """The number of pages that nobody references."""
        return len(self._free)

    @property
    def free_tokens(self) -> int:
        """The number of tokens that fit into the free pages."""
        return len(self._free) * self.page_size

    def pages(self, sequence: int) -> list[int]:
        """The pages of a sequence, in order of position."""
        return self.blocks[sequence, : -(-int(self.lengths[sequence]) // self.page_size)].tolist()

    def pages_needed(self, sequence: int, n_tokens: int) -> int:
        """The number of new pages that `extend` would take."""
        length = self.lengths.item(sequence)
        return -(-(length + n_tokens) // self.page_size) + -length // self.page_size

    def extend(self, sequence: int, n_tokens: int) -> None:
        """Make room for `n_tokens` more tokens.

        Raises CacheFull if they do not fit; the table is unchanged then.
        """
        if n_tokens < 0:
            raise ValueError(f"cannot extend a sequence by {n_tokens} tokens")
        length = self.lengths.item(sequence)
        owned = -(-length // self.page_size)
        needed = -(-(length + n_tokens) // self.page_size)
        new = needed - owned
        if new > len(self._free):
            raise CacheFull(f"{n_tokens} tokens need {new} pages, {len(self._free)} are free")
        if new:
            # There is no call between these lines: Python delivers Ctrl-C at calls and jumps, so that it
            # cannot leave a page with two owners or with none.
            taken = self._free[: -new - 1 : -1]
            self.blocks[sequence, owned:needed] = taken
            self.references[taken] = 1
            del self._free[-new:]
        self.lengths[sequence] = length + n_tokens

    def truncate(self, sequence: int, length: int) -> None:
        """Cut a sequence to `length` tokens and give up its other pages; a shorter one stays as it is."""
        if length < 0:
            raise ValueError(f"cannot truncate a sequence to {length} tokens")
        before = self.lengths.item(sequence)
        if length >= before:
            return
        owned = -(-before // self.page_size)
        kept = -(-length // self.page_size)
        pages = self.blocks[sequence, kept:owned].tolist()
        freed = self._without_others(pages)
        self.references[pages] -= 1  # no call from here to the end, as in extend
        self._free += freed
        self.blocks[sequence, kept:owned] = -1
        self.lengths[sequence] = length

    def adopt(self, sequence: int, pages: Sequence[int]) -> None:
        """Let an empty sequence begin with `pages`, whole ones whose tokens are known.

        Raises ValueError for a sequence that is not empty.
        """
        if self.lengths[sequence]:
            raise ValueError(f"sequence {sequence} is not empty")
        pages = list(pages)
        n = len(pages)
        self.blocks[sequence, :n] = pages  # no call from here to the end, as in extend
        self.references[pages] += 1
        self.lengths[sequence] = n * self.page_size

    def retain(self, page: int) -> None:
        """Add a reference to a page."""
        self.references[page] += 1

    def release(self, page: int) -> None:
        """Give a reference of `retain` up."""
        freed = self._without_others([page])
        self.references[page] -= 1
        self._free += freed

    def hand_over(self, sequence: int, page: int, length: int) -> None:
        """Append a page with one reference, that of `retain`, to a sequence, which then has `length` tokens.

        The reference becomes the sequence's, which may write behind its tokens. Raises ValueError if the
        sequence ends in the middle of a page, or if there are other references.
        """
        before = int(self.lengths[sequence])
        if before % self.page_size or self.references[page] != 1:
            raise ValueError(f"page {page} cannot become the next one of sequence {sequence}")
        self.blocks[sequence, before // self.page_size] = page
        self.lengths[sequence] = length

    def _without_others(self, pages: list[int]) -> list[int]:
        """Those of `pages` that have one reference, in the order in which they go back to the free ones."""
        return [page for page in reversed(pages) if self.references[page] == 1]
