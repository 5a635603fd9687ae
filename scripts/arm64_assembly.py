#!/usr/bin/env python3
"""Assembly of the CPU kernels for arm64, compiled on any machine and not run.

    python scripts/arm64_assembly.py [--level neon|i8mm] [--json] [--leave-out NAME …] [NAME …]

Prints a line for each kernel whose name contains one of the given words (all without words): instructions,
how many of some kinds, and the functions it calls; and for a kernel of products its inner loop: instructions,
products, and accesses to the stack, which are vectors that registers had no room for. The whole name of a
kernel prints its assembly. `--json` writes {name: assembly}, which tests/runtime/cpu/simd/test_neon.py reads.

The process pretends to be arm64 Linux before the package is imported: Numba is told another triple, CPU and
features, and LLVM's own AArch64 backend writes assembly where there would be machine code.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import targets
from numba.core import codegen

TRIPLE = "aarch64-unknown-linux-gnu"
# By level, only features that all cores with its products have.
_SDOT = {"neon": True, "fp-armv8": True, "fullfp16": True, "dotprod": True}
FEATURES = {"neon": _SDOT, "i8mm": {**_SDOT, "i8mm": True}}
SHOWN = ("sdot", "smmla", "tbl", "fcvtl", "fmla", "smlal", "scvtf", "ld1r", "dup", "prfm")


def pretend_arm64(level: str) -> None:
    """Make this process compile for arm64, and the package choose a level of it; nothing can be run."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    host: Any = platform
    host.machine, host.system = lambda: "aarch64", lambda: "Linux"
    modules: list[Any] = [llvm, targets]
    for module in modules:
        module.get_process_triple = module.get_default_triple = lambda: TRIPLE
        module.get_host_cpu_features = lambda: targets.FeatureMap(FEATURES[level])
        module.get_host_cpu_name = lambda: "generic"

    def finalize(library: Any, name: str) -> int:
        library._ensure_finalized()
        return 0

    # Numba optimises and links as usual, but nothing is made executable.
    library: Any = codegen.JITCodeLibrary
    generator: Any = codegen.JITCPUCodegen
    library.get_pointer_to_function = finalize
    library._finalize_specific = lambda self: None
    generator._add_module = lambda self, module: None
    generator.set_env = lambda self, name, env: None
    os.environ["KUKRI_SIMD"] = level


def kernels() -> dict[str, Any]:
    """Every kernel of the CPU machine but those of AMX's tiles, by name: gemv.GEMVS[Q4_0]."""
    import kukri.runtime.cpu.kernels as package
    from kukri.quant.jit.kernel import CpuKernel
    from kukri.runtime.cpu.simd.panels import GATHER_ROWS

    tables = [GATHER_ROWS, *vars(package).values()]
    found = [
        k for t in tables for k in (t.values() if isinstance(t, dict) else [t]) if isinstance(k, CpuKernel)
    ]
    return {
        str(kernel): kernel for kernel in found if not str(kernel).startswith(("tile_gemm.", "tile_prefill."))
    }


def instructions() -> dict[str, Callable[[int, int, int], None]]:
    """The instructions of quant.jit.simd and runtime.cpu.simd.dot8, each in a kernel of its own."""
    from kukri.quant.jit.simd import arithmetic, memory, threads
    from kukri.quant.jit.simd.memory import loadv_f32, loadv_i32, storev_f32, storev_i32
    from kukri.runtime.cpu.simd import dot8

    table = tuple(range(16))
    signed = dot8.Codes("signed", limit=127, signed=True)

    def dot(a: int, b: int, c: int) -> None:
        words = (loadv_i32(a), loadv_i32(a + 16), loadv_i32(a + 32), loadv_i32(a + 48))
        storev_i32(c, dot8.dot(loadv_i32(c), words, b, signed))

    return {
        "simd.dot": dot,
        "simd.lookup16": lambda a, b, c: storev_i32(a, dot8.lookup16(table, loadv_i32(a))),
        "simd.fma": lambda a, b, c: storev_f32(a, arithmetic.fma(loadv_f32(a), loadv_f32(b), loadv_f32(c))),
        "simd.round_even": lambda a, b, c: storev_f32(a, arithmetic.round_even(loadv_f32(a))),
        "simd.absolute": lambda a, b, c: storev_f32(a, arithmetic.absolute(loadv_f32(a))),
        "simd.to_f32": lambda a, b, c: storev_f32(a, arithmetic.to_f32(loadv_i32(a))),
        "simd.to_i32": lambda a, b, c: storev_i32(a, arithmetic.to_i32(loadv_f32(a))),
        "simd.loadv_f16": lambda a, b, c: storev_f32(a, memory.loadv_f16(b)),
        "simd.loadv_bf16": lambda a, b, c: storev_f32(a, memory.loadv_bf16(b)),
        "simd.loadv_u16": lambda a, b, c: storev_i32(a, memory.loadv_u16(b)),
        "simd.loadv_u8": lambda a, b, c: storev_i32(a, memory.loadv_u8(b)),
        "simd.store_f16": lambda a, b, c: memory.store_f16(a, memory.load_f32(b)),
        "simd.splat_f32": lambda a, b, c: storev_f32(a, arithmetic.splat_f32(memory.load_f32(b))),
        "simd.prefetch": lambda a, b, c: memory.prefetch(a),
        "simd.pause": lambda a, b, c: threads.pause(),
        "simd.atomic_load": lambda a, b, c: memory.store_i32(b, threads.atomic_load(a)),
    }


def assembly(words: list[str], left_out: list[str]) -> dict[str, str]:
    """{name: assembly} of the kernels and instructions with one of `words` in their names (none: all).

    `pretend_arm64` must have been called.
    """
    from kukri.quant.jit.decorators import EntryPoint

    machine: Any = targets.TargetMachine
    machine.emit_object = machine.emit_assembly
    sources = {name: kernel.entry_point() for name, kernel in kernels().items()}
    sources |= {name: EntryPoint(function) for name, function in instructions().items()}
    chosen = {n: s for n, s in sources.items() if not words or any(word in n for word in words)}
    if unknown := set(left_out) - set(sources):
        raise SystemExit(f"there is no {', '.join(sorted(unknown))} to leave out")
    # Text stands where `machine_code` expects object code.
    return {n: str(s.machine_code()[0]) for n, s in chosen.items() if n not in left_out}


def mnemonics(text: str) -> Counter[str]:
    """The number of each kind of instruction in an assembly text."""
    return Counter(re.findall(r"^\t([a-z]\w*)", text, re.MULTILINE))


def calls(text: str) -> list[str]:
    """The functions that an assembly text calls but does not define."""
    own = set(re.findall(r"^([\w.$]+):", text, re.MULTILINE))
    return sorted(set(re.findall(r"^\tbl?\t([A-Za-z_][\w.$]*)", text, re.MULTILINE)) - own)


def inner_loop(text: str) -> list[str]:
    """The instructions of the loop with the most 8-bit products; [] if no loop of one block has any."""
    blocks = re.split(r"^(\.LBB\w+):.*\n", text, flags=re.MULTILINE)
    best: list[str] = []
    for label, block in zip(blocks[1::2], blocks[2::2], strict=True):
        found = re.findall(r"^\t([a-z].*)", block, re.MULTILINE)
        if any(re.fullmatch(rf"b\S*\s.*{re.escape(label)}", i) for i in found):
            best = max(best, found, key=n_products)
    return best if n_products(best) else []


def n_products(found: list[str]) -> int:
    """How many of some instructions are 8-bit products."""
    return sum(i.startswith(("sdot", "smmla")) for i in found)


def n_spills(found: list[str]) -> int:
    """How many of some instructions access vectors on the stack."""
    return sum(bool(re.match(r"(ld|st)\w*\t[qdv].*\[sp", i)) for i in found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--leave-out", action="append", default=[], metavar="NAME")
    parser.add_argument("--level", choices=FEATURES, default="neon")
    options = parser.parse_args()
    pretend_arm64(options.level)
    texts = assembly(options.names, options.leave_out)
    if options.json:
        print(json.dumps(texts))
        return
    for name, text in texts.items():
        if options.names == [name]:
            print(text)
            return
        found = mnemonics(text)
        kinds = "".join(f", {found[kind]} {kind}" for kind in SHOWN if found[kind])
        loop, called = inner_loop(text), ", ".join(calls(text)) or "nothing"
        inner = f"; inner loop: {len(loop)}, {n_products(loop)} products, {n_spills(loop)} spills"
        print(f"{name}: {found.total()} instructions{kinds}; calls {called}{inner if loop else ''}")


if __name__ == "__main__":
    main()
