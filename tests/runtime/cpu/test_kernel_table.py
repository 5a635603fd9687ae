"""The table of kernels by name: every entry exists in its module, and none is there twice."""

from __future__ import annotations

import subprocess
import sys

from kukri.quant.jit.decorators import EntryPoint
from kukri.quant.jit.kernel import CpuKernel
from kukri.runtime.cpu import kernels
from kukri.runtime.cpu.simd.panels import GATHER_ROWS


def table() -> list[CpuKernel]:
    """Every kernel of the CPU machine; a name that is an alias (POST of TEAM_KERNELS) counts once."""
    entries: list[CpuKernel] = [GATHER_ROWS]
    for value in vars(kernels).values():
        values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
        entries += [kernel for kernel in values if isinstance(kernel, CpuKernel)]
    return list({id(kernel): kernel for kernel in entries}.values())


def test_every_entry_is_an_entry_point_of_its_module():
    for kernel in table():
        assert isinstance(kernel.entry_point(), EntryPoint), kernel


def test_names_and_entry_points_are_unique():
    """Names are shown in profiles, keys are file names in the cache."""
    entries = table()
    assert len({str(kernel) for kernel in entries}) == len(entries)
    assert len({kernel.key for kernel in entries}) == len(entries)
    assert len({id(kernel.entry_point()) for kernel in entries}) == len(entries)


def test_tables_of_a_module_are_covered():
    """Every entry point that a kernel module defines has a name here."""
    named = {id(kernel.entry_point()) for kernel in table()}
    for module in {kernel.module for kernel in table()}:
        for name, value in vars(sys.modules[module]).items():
            points = value.values() if isinstance(value, dict) else [value]
            for point in points:
                assert not isinstance(point, EntryPoint) or id(point) in named, f"{module}.{name}"


def test_the_table_imports_no_numba():
    code = "import sys, kukri.runtime.cpu.kernels; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
