"""The paged KV cache: which page of the pool holds which tokens of which sequence.

The pages' contents belong to the machine; this table only hands page numbers out, so that every
machine shares it. (Kwon et al. 2023, "Efficient Memory Management for LLM Serving with
PagedAttention".)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import CacheFull

PAGE_SIZE = 64  # tokens a page


@dataclass(frozen=True)
class Batch:
    """The rows of one step: any mix of prefill chunks and decode tokens of several sequences.

    Rows of one sequence stand in order of position. `logits_indices` lists, in ascending order, the rows
    whose logits are asked for (possibly none). `lengths` says how long each row's sequence is going to be
    before anything is generated, where a prompt comes in several steps: some models rotate by it.
    """

    tokens: np.ndarray  # int32 [n]
    sequences: np.ndarray  # int32 [n], rows of PageTable.blocks
    positions: np.ndarray  # int32 [n]
    logits_indices: np.ndarray  # int32 [m]
    lengths: np.ndarray | None = (
        None  # int32 [n], above the positions; None: the sequences end with this step
    )

    def sequence_lengths(self) -> np.ndarray:
        """int32 [n]: the length of each row's sequence, which is the same for all rows of a sequence."""
        reached = self.positions + 1 if self.lengths is None else np.maximum(self.lengths, self.positions + 1)
        lengths = np.zeros(int(self.sequences.max(initial=0)) + 1, np.int32)
        np.maximum.at(lengths, self.sequences, reached)
        return lengths[self.sequences]

    def check(
        self, table: PageTable, n_pages: int, vocab: int, max_rows: int, max_logits: int, n_positions: int = 0
    ) -> None:
        """ValueError unless a machine of `n_pages` pages and `vocab` token ids (0: nobody looks at them) can
        run this step, of a model that knows `n_positions` (0: any number).

        Compiled kernels do not check their indices: everything that they index with is checked here.
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
        if not n or (n == 1 and self._fits_alone(table, vocab, n_positions)):
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

    def _fits_alone(self, table: PageTable, vocab: int, n_positions: int) -> bool:
        """Whether a batch of one row is as `check` wants it, found without NumPy, whose overhead for each
        question would make a tenth of a step on a card.
        """
        token, sequence, position = int(self.tokens[0]), int(self.sequences[0]), int(self.positions[0])
        if not (0 <= sequence < len(table.lengths) and 0 <= position < table.lengths[sequence]):
            return False
        known = (not vocab or 0 <= token < vocab) and (not n_positions or position < n_positions)
        return known and (
            not len(self.logits_indices)
            or (len(self.logits_indices) == 1 and int(self.logits_indices[0]) == 0)
        )


class PageTable:
    """Block tables of up to `max_sequences` sequences over a pool of `n_pages` pages.

    `blocks`, int32 [max_sequences, n_pages]: `blocks[s, i]` is the page that holds positions
    i·page_size … of sequence s (-1: none yet). `lengths`, int32 [max_sequences]: how many tokens each
    sequence has room for. Low page numbers are handed out first, so that a pool whose memory is
    committed on first touch grows with what is used of it.
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
        self._free = list(range(n_pages - 1, -1, -1))  # a stack, the next page last

    @property
    def free_tokens(self) -> int:
        """Tokens that fit into the pages nobody holds."""
        return len(self._free) * self.page_size

    def extend(self, sequence: int, n_tokens: int) -> None:
        """Make room for `n_tokens` more; raises CacheFull, changing nothing, if they do not fit."""
        if n_tokens < 0:
            raise ValueError(f"cannot extend a sequence by {n_tokens} tokens")
        length = int(self.lengths[sequence])
        held = -(-length // self.page_size)
        needed = -(-(length + n_tokens) // self.page_size)
        new = needed - held
        if new > len(self._free):
            raise CacheFull(f"{n_tokens} tokens need {new} pages, {len(self._free)} are free")
        if new:
            # No call stands between these lines: Python delivers Ctrl-C at calls and jumps, so it
            # cannot come between them and leave a page with two owners or with none.
            self.blocks[sequence, held:needed] = self._free[: -new - 1 : -1]
            del self._free[-new:]
        self.lengths[sequence] = length + n_tokens

    def truncate(self, sequence: int, length: int) -> None:
        """Forget everything from position `length` on; does nothing if the sequence is no longer."""
        if length < 0:
            raise ValueError(f"cannot truncate a sequence to {length} tokens")
        before = int(self.lengths[sequence])
        if length >= before:
            return
        held = -(-before // self.page_size)
        kept = -(-length // self.page_size)
        pages = self.blocks[sequence, kept:held].tolist()
        self._free += pages[::-1]  # from here on no call, as in extend
        self.blocks[sequence, kept:held] = -1
        self.lengths[sequence] = length
