"""Loads of packed weights: from global memory, where they are read once, or from shared memory."""

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

SHARED = 0  # constant of the launch: whether addresses are those of shared memory


@device
def read_byte(at):
    """A uint8, zero-extended."""
    if SHARED:
        word = load_shared_byte(at)
    else:
        word = load_stream_byte(at)
    return word


@device
def read_short(at):
    """A uint16, zero-extended."""
    if SHARED:
        word = load_shared_short(at)
    else:
        word = load_stream_short(at)
    return word


@device
def read1(at):
    """A word."""
    if SHARED:
        word = load_shared_int(at)
    else:
        word = load_stream1(at)
    return word


@device
def read2(at):
    """Two words."""
    if SHARED:
        words = load_shared_int2(at)
    else:
        words = load_stream2(at)
    return words


@device
def read4(at):
    """Four words."""
    if SHARED:
        words = load_shared_int4(at)
    else:
        words = load_stream4(at)
    return words
