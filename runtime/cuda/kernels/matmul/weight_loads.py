"""Loads of packed weights: from global memory, or, with IN_SHARED, from a copy in shared memory."""

from __future__ import annotations

from ...compile.stage import device
from ...ptx import (
    load_shared_byte,
    load_shared_int,
    load_shared_int2,
    load_shared_int4,
    load_shared_short,
    load_stream1,
    load_stream2,
    load_stream4,
    load_stream_byte,
    load_stream_short,
)

IN_SHARED = 0  # constant of the launch


@device
def load_weights4(address):
    """16 bytes."""
    if IN_SHARED:
        words = load_shared_int4(address)
    else:
        words = load_stream4(address)
    return words


@device
def load_weights2(address):
    """8 bytes."""
    if IN_SHARED:
        words = load_shared_int2(address)
    else:
        words = load_stream2(address)
    return words


@device
def load_weights1(address):
    """4 bytes."""
    if IN_SHARED:
        word = load_shared_int(address)
    else:
        word = load_stream1(address)
    return word


@device
def load_weights_short(address):
    """A uint16, zero-extended."""
    if IN_SHARED:
        word = load_shared_short(address)
    else:
        word = load_stream_short(address)
    return word


@device
def load_weights_byte(address):
    """A uint8, zero-extended."""
    if IN_SHARED:
        word = load_shared_byte(address)
    else:
        word = load_stream_byte(address)
    return word
