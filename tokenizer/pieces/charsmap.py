"""SentencePiece's normaliser: a table of replacements in a double-array trie, `precompiled_charsmap`.

Aoe 1989, "An Efficient Digital Search Algorithm by Using a Double-Array Structure", as in Darts-clone,
applied to grapheme clusters as `tokenizers` does it.
"""

from __future__ import annotations

import struct

from ..errors import TokenizerError
from ..normalize import Normalizer

_LONGEST_CLUSTER = 6  # bytes, below which a grapheme cluster is looked up as a whole
_MAX_BYTES = 1 << 24  # of a table; that of NMT's NFKC has 2^18


def charsmap(raw: bytes) -> Normalizer:
    """The normaliser of a table. Raises TokenizerError if it is damaged."""
    if len(raw) > _MAX_BYTES:
        raise TokenizerError(f"a table of replacements of {len(raw)} bytes")
    size = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or size % 4 or 4 + size > len(raw) or not size:
        raise TokenizerError("a damaged table of replacements")
    units = struct.unpack(f"<{size // 4}I", raw[4 : 4 + size])
    return _Charsmap(units, raw[4 + size :])


class _Charsmap:
    """Replaces what the trie `units` has, each by a text of `texts`, which end with a zero byte."""

    def __init__(self, units: tuple[int, ...], texts: bytes) -> None:
        self._units = units
        self._texts = texts
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        if text.isascii() and "\r\n" not in text:
            clusters = list(text)
        else:
            import regex

            clusters = regex.findall(r"\X", text)
        known, out = self._known, []
        for cluster in clusters:
            normal = known.get(cluster)
            if normal is None:
                normal = self._normal(cluster)
                if len(known) < 1 << 16 and len(cluster) < _LONGEST_CLUSTER:
                    known[cluster] = normal
            out.append(normal)
        return "".join(out)

    def _normal(self, cluster: str) -> str:
        if len(cluster.encode()) < _LONGEST_CLUSTER and (whole := self._replacement(cluster)) is not None:
            return whole
        parts = ((char, self._replacement(char)) for char in cluster)
        return "".join(char if new is None else new for char, new in parts)

    def _replacement(self, text: str) -> str | None:
        """The replacement of the shortest beginning of `text` that the table has; None if it has none."""
        units = self._units
        try:
            at = _offset(units[0])
            for byte in text.encode():
                if not byte:
                    return None
                at ^= byte
                unit = units[at]
                if unit & (1 << 31 | 0xFF) != byte:
                    return None
                at ^= _offset(unit)
                if unit >> 8 & 1:
                    start = units[at] & (1 << 31) - 1
                    end = self._texts.index(b"\0", start)
                    return self._texts[start:end].decode()
        except (IndexError, ValueError):
            raise TokenizerError("a damaged table of replacements") from None
        return None


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)
