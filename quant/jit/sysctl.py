"""What macOS says about the computer."""

from __future__ import annotations

import ctypes


def mac_number(name: str) -> int | None:
    """A number that macOS's `sysctl` knows under a name; None if it knows none, and on other systems."""
    try:
        sysctl = ctypes.CDLL(None).sysctlbyname
    except (OSError, TypeError, AttributeError):
        return None
    number = ctypes.c_int64(0)  # what it writes may be 4 bytes; little-endian
    size = ctypes.c_size_t(ctypes.sizeof(number))
    failed = sysctl(name.encode(), ctypes.byref(number), ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else number.value
