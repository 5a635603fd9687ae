"""The prefix tree: pages of the KV cache by the tokens that lie in them and in front of them.

Keys and values depend on all tokens before, so that a page can be shared by all sequences that begin with the
same tokens. The tree's nodes are pages; the way from the root spells those tokens. A page that no sequence
uses stays until its room is needed, the least recently used leaf first. (Zheng et al. 2024, "SGLang:
Efficient Execution of Structured Language Model Programs", RadixAttention.)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from ..cache import PageTable

MOST_COMPARED = 64  # children of a node that are compared for the longest common beginning, the newest first
EVICTED_SHARE = (
    64  # one in so many pages of the pool goes at a time, since a walk through the tree finds them
)


@dataclass(eq=False)
class Node:
    """A page and the `tokens` in it: page_size of them, or fewer in a leaf."""

    tokens: tuple[int, ...]
    page: int
    parent: Node | None
    used: int = 0  # when a match or an insertion came by, a count
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Match:
    """What the tree has of a beginning: whole `pages`, then `n_partial` tokens of the page of `partial`."""

    pages: list[int]
    partial: Node | None = None
    n_partial: int = 0


class PrefixTree:
    """Holds a reference to each of its pages of `table`."""

    def __init__(self, table: PageTable) -> None:
        self._table = table
        self._root = Node((), -1, None)
        self._clock = count(1)

    def match(self, ids: Sequence[int]) -> Match:
        """The longest beginning of `ids` that is there."""
        size, node, pages = self._table.page_size, self._root, list[int]()
        now = next(self._clock)
        while True:
            start = len(pages) * size
            child = node.children.get(tuple(ids[start : start + size]))
            if child is None or len(child.tokens) < size:
                break
            child.used = now
            pages.append(child.page)
            node = child
        best, length = None, 0
        wanted = ids[start : start + size]
        for child in self._newest(node):
            common = common_length(child.tokens, wanted)
            if common > length:
                best, length = child, common
        if best is not None:
            best.used = now
        return Match(pages, best, length)

    def _newest(self, node: Node) -> Iterator[Node]:
        children = list(node.children.values())
        return reversed(children[-MOST_COMPARED:])

    def insert(self, ids: Sequence[int], pages: Sequence[int]) -> None:
        """Note that `pages` hold the keys and values of `ids`; the last page may be there in part."""
        size, node, now = self._table.page_size, self._root, next(self._clock)
        for i, page in enumerate(pages):
            tokens = tuple(ids[i * size : (i + 1) * size])
            if not tokens:
                return
            node = self._child(node, tokens, page)
            node.used = now
            if len(node.tokens) < size:
                return

    def _child(self, node: Node, tokens: tuple[int, ...], page: int) -> Node:
        """The child of `node` for `tokens`, made if there is none. A leaf of the same page grows."""
        found = node.children.get(tokens)
        if found is not None:
            return found
        for child in self._newest(node):
            if child.page == page and tokens[: len(child.tokens)] == child.tokens:
                del node.children[child.tokens]
                child.tokens = tokens
                node.children[tokens] = child
                return child
            if len(child.tokens) > len(tokens) and child.tokens[: len(tokens)] == tokens:
                return child  # it has these tokens and more
        self._table.retain(page)
        made = node.children[tokens] = Node(tokens, page, node)
        return made

    def take(self, node: Node, sequence: int, n_tokens: int) -> bool:
        """Hand the page of a leaf over to a sequence that goes on behind all `n_tokens` tokens of it.

        False, and nothing changes, if the page has other tokens behind these or another reference.
        """
        if node.children or len(node.tokens) != n_tokens or self._table.references[node.page] != 1:
            return False
        parent = node.parent
        assert parent is not None
        # In all changes a node goes before its page's reference does: an interrupt in between loses a page,
        # but never gives it to two.
        del parent.children[node.tokens]
        self._table.hand_over(sequence, node.page, int(self._table.lengths[sequence]) + n_tokens)
        return True

    def evict(self, n_pages: int) -> int:
        """Free at least `n_pages` pages that no sequence uses, leaves first; returns how many were freed,
        fewer if there are no more."""
        order, wanted = count(), max(n_pages, self._table.n_pages // EVICTED_SHARE)
        leaves = [(node.used, next(order), node) for node in self._leaves()]
        heapq.heapify(leaves)
        freed = 0
        while leaves and freed < wanted:
            node = heapq.heappop(leaves)[2]
            if self._table.references[node.page] > 1:
                continue
            parent = node.parent
            assert parent is not None
            del parent.children[node.tokens]
            self._table.release(node.page)
            freed += 1
            if not parent.children and parent is not self._root:
                heapq.heappush(leaves, (parent.used, next(order), parent))
        return freed

    def clear(self) -> None:
        """Forget all pages; those that no sequence uses are free then."""
        pages = [node.page for node in self._nodes()]
        self._root.children.clear()
        for page in pages:
            self._table.release(page)

    def _nodes(self) -> Iterator[Node]:
        pending = list(self._root.children.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def _leaves(self) -> Iterator[Node]:
        return (node for node in self._nodes() if not node.children)


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common beginning of two lists of ids."""
    n = 0
    for ours, theirs in zip(a, b, strict=False):
        if ours != theirs:
            break
        n += 1
    return n
