"""Sizes in bytes as text for people."""

from __future__ import annotations


def human_bytes(n: float) -> str:
    """`n` bytes in the unit that keeps the number below 1000, in powers of 1000 as on the Hub: "98.4 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 999.5:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"
