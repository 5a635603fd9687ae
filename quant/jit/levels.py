"""The SIMD level: which vector instructions kernels are compiled to.

It is the best that the CPU supports; the environment variable `KUKRI_SIMD` forces another supported one.
Lanes are the 32-bit lanes of a vector register:

=============  =====  =================================================
level          lanes  8-bit dot product
=============  =====  =================================================
amx            16     vpdpbusd zmm; prompts: tdpbf16ps
avx512vnni     16     vpdpbusd zmm
avx512         16     vpmaddubsw + vpmaddwd zmm
avxvnni        8      vpdpbusd ymm
avx2           8      vpmaddubsw + vpmaddwd ymm
i8mm           4      sdot; prompts and few rows: smmla
neon           4      sdot
plain          8      widening multiplications; any CPU that LLVM knows
plain16        16     the same in the layouts of AVX-512: slow, to test them on any CPU
=============  =====  =================================================

Level `amx` is `avx512vnni` in all kernels but the products of prompts (`runtime/cpu/matrix_tiles.py`), so
that LEVEL, which kernels are written by, is the latter for both.
"""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

import llvmlite.binding as llvm

from .sysctl import mac_number

# level → lanes
LEVELS = {
    "amx": 16,
    "avx512vnni": 16,
    "avx512": 16,
    "avxvnni": 8,
    "avx2": 8,
    "i8mm": 4,
    "neon": 4,
    "plain": 8,
    "plain16": 16,
}


def cpu_features() -> Any:
    """The features of this CPU under LLVM's names, also to be given to LLVM's code generator.

    LLVM's list is completed by `dotprod` and `i8mm` on arm64: LLVM would abort the process at an `sdot` or
    `smmla` instruction if neither the CPU's name nor its features imply it.
    """
    has = llvm.get_host_cpu_features()
    if platform.machine().lower() in ("aarch64", "arm64"):
        asked = {"Linux": _linux_features, "Darwin": _mac_features}.get(platform.system(), dict)()
        for feature, there in asked.items():
            has.setdefault(feature, there)
    return has


def _linux_features() -> dict[str, bool]:
    """The features of an arm64 CPU that products need, as Linux tells a process about them."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    at_hwcap, asimddp, at_hwcap2, i8mm = 16, 1 << 20, 26, 1 << 13
    return {"dotprod": bool(getauxval(at_hwcap) & asimddp), "i8mm": bool(getauxval(at_hwcap2) & i8mm)}


def _mac_features() -> dict[str, bool]:
    """The same of a Mac: all of Apple's arm64 CPUs for Macs have `dotprod`, those since the M2 `i8mm`."""
    return {"dotprod": True, "i8mm": mac_number("hw.optional.arm.FEAT_I8MM") == 1}


def features_of(level: str, has: dict[str, bool]) -> dict[str, bool]:
    """The CPU's features `has` without those that code of a level must do without.

    Otherwise LLVM would use them where a lower level is forced: it makes one instruction of vpmaddwd and
    vpaddd where there is VNNI, and takes 32 registers where there is AVX-512.
    """
    beyond = {"avx512": ("avx512vnni", "avxvnni"), "avx2": ("avx512", "evex512", "avxvnni")}.get(level, ())
    return {feature: there and not feature.startswith(beyond) for feature, there in has.items()}


def supported_levels() -> list[str]:
    """The levels that this CPU supports, best first."""
    has = cpu_features()
    levels = []
    if platform.machine().lower() in ("x86_64", "amd64"):
        avx2 = all(has.get(f) for f in ("avx2", "fma", "f16c"))
        avx512 = avx2 and all(has.get(f) for f in ("avx512f", "avx512bw", "avx512vl", "avx512dq"))
        vnni = avx512 and has.get("avx512vnni")
        tiles = all(has.get(f) for f in ("amx-tile", "amx-bf16", "avx512bf16"))
        levels += ["amx"] if vnni and tiles and platform.system() == "Linux" else []
        levels += ["avx512vnni"] if vnni else []
        levels += ["avx512"] if avx512 else []
        levels += ["avxvnni"] if avx2 and (has.get("avxvnni") or vnni) else []
        levels += ["avx2"] if avx2 else []
    elif platform.machine().lower() in ("aarch64", "arm64"):
        levels += ["i8mm"] if has.get("dotprod") and has.get("i8mm") else []
        levels += ["neon"] if has.get("dotprod") else []
    return [*levels, "plain", "plain16"]


def pick_level(forced: str | None) -> str:
    """The best supported level, or `forced` if given; ValueError if that is unknown or not supported."""
    supported = supported_levels()
    if not forced:
        return supported[0]
    if forced not in LEVELS:
        raise ValueError(f"KUKRI_SIMD={forced!r} is none of {', '.join(LEVELS)}")
    if forced not in supported:
        raise ValueError(f"KUKRI_SIMD={forced}: this CPU offers {', '.join(supported)}")
    return forced


CHOSEN_LEVEL = pick_level(os.environ.get("KUKRI_SIMD"))
LEVEL = "avx512vnni" if CHOSEN_LEVEL == "amx" else CHOSEN_LEVEL
LANES = LEVELS[LEVEL]
ARM64 = LEVEL in ("i8mm", "neon")
AVX_WITHOUT_VNNI = LEVEL in ("avx512", "avx2")  # products of codes are by vpmaddubsw or vpmaddwd
