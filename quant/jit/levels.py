"""Which SIMD instructions the CPU offers, and which of them are used.

The level is picked from what the CPU offers; `KUKRI_SIMD` forces a lower one:

=============  =====  =================================================
level          lanes  8-bit dot product
=============  =====  =================================================
avx512vnni     16     vpdpbusd zmm
avx512         16     vpmaddubsw + vpmaddwd zmm
avxvnni        8      vpdpbusd ymm
avx2           8      vpmaddubsw + vpmaddwd ymm
neon           4      sdot
plain          8      widening multiplications; any CPU that LLVM knows
=============  =====  =================================================
"""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

import llvmlite.binding as llvm

LEVELS = {"avx512vnni": 16, "avx512": 16, "avxvnni": 8, "avx2": 8, "neon": 4, "plain": 8}


def cpu_features() -> Any:
    """What this CPU has, by LLVM's names; for LLVM too, which would end the process over an `sdot` that the
    CPU's name does not promise and the features do not list."""
    has = llvm.get_host_cpu_features()
    if platform.machine().lower() in ("aarch64", "arm64") and "dotprod" not in has:
        if platform.system() == "Linux":  # whose list LLVM reads without this one
            getauxval = ctypes.CDLL(None).getauxval
            getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
            at_hwcap, asimddp = 16, 1 << 20
            has["dotprod"] = bool(getauxval(at_hwcap) & asimddp)
        elif platform.system() == "Darwin":  # all that Apple has made for it; LLVM reads nothing there
            has["dotprod"] = True
    return has


def supported_levels() -> list[str]:
    """The levels this CPU can run, best first."""
    has = cpu_features()
    found = []
    if platform.machine().lower() in ("x86_64", "amd64"):
        avx2 = all(has.get(f) for f in ("avx2", "fma", "f16c"))
        avx512 = avx2 and all(has.get(f) for f in ("avx512f", "avx512bw", "avx512vl", "avx512dq"))
        found += ["avx512vnni"] if avx512 and has.get("avx512vnni") else []
        found += ["avx512"] if avx512 else []
        found += ["avxvnni"] if avx2 and (has.get("avxvnni") or (avx512 and has.get("avx512vnni"))) else []
        found += ["avx2"] if avx2 else []
    elif platform.machine().lower() in ("aarch64", "arm64"):
        found += ["neon"] if has.get("dotprod") else []
    return [*found, "plain"]


def pick_level(forced: str | None) -> str:
    """The best supported level, or `forced`; ValueError if that one is unknown or not supported."""
    offered = supported_levels()
    if not forced:
        return offered[0]
    if forced not in LEVELS:
        raise ValueError(f"KUKRI_SIMD={forced!r} is none of {', '.join(LEVELS)}")
    if forced not in offered:
        raise ValueError(f"KUKRI_SIMD={forced}: this CPU offers {', '.join(offered)}")
    return forced


LEVEL = pick_level(os.environ.get("KUKRI_SIMD"))
LANES = LEVELS[LEVEL]
