"""Random numbers that depend on nothing but the test that draws them.

A test module has one generator, `RNG`, for all its tests and for helpers that other modules borrow. Which
tests a process runs, and in which order, differs with the number of processes and their speed: were it not
for seeding before each test, no failure could be repeated.
"""

from __future__ import annotations

import sys
import zlib

import numpy as np

PACKAGE = __package__


def generators() -> list[np.random.Generator]:
    """The generators named `RNG` of the test modules imported so far."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(f"{PACKAGE}.")]
    found = [getattr(module, "RNG", None) for module in modules]
    return [rng for rng in found if isinstance(rng, np.random.Generator)]


def seed(generators: list[np.random.Generator], name: str) -> None:
    """Start each generator anew with a state that follows from the name."""
    state = np.random.PCG64(zlib.crc32(name.encode())).state
    for rng in generators:
        rng.bit_generator.state = state
