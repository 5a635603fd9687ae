"""The steps that are put in the place of Numba's give the same as Numba's own, for random functions."""

from __future__ import annotations

import importlib.util
import io
import random
from contextlib import redirect_stdout

import pytest

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("numba_cuda"), reason="numba-cuda is not installed"
)
NAMES = "abcd"


def original(module):
    """A copy of a module in which nothing is replaced."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_original", module.__file__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def random_block(rng: random.Random, depth: int, indent: str) -> list[str]:
    lines = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(["set", "set", "if", "while", "for"]) if depth else "set"
        x, y, z = (rng.choice(NAMES) for _ in range(3))
        if kind == "set":
            lines.append(f"{indent}{x} = {y} + {z}")
        elif kind == "if":
            lines += [f"{indent}if {x} > {y}:", *random_block(rng, depth - 1, indent + "    ")]
            if rng.random() < 0.5:
                lines += [f"{indent}else:", *random_block(rng, depth - 1, indent + "    ")]
        elif kind == "while":
            lines += [f"{indent}while {x} < {y}:", *random_block(rng, depth - 1, indent + "    ")]
        else:
            lines += [f"{indent}for {x} in range({y}):", *random_block(rng, depth - 1, indent + "    ")]
    return lines


def random_function(seed: int):
    body = random_block(random.Random(seed), 3, "    ")
    scope: dict = {}
    source = "\n".join(["def f(a, b):", "    c = d = a", *body, "    return a + b + c + d"])
    exec(source, scope)  # noqa: S102 - made above
    return scope["f"]


def frontend(function):
    from numba.cuda.core import bytecode, interpreter

    identity = bytecode.FunctionIdentity.from_function(function)
    return interpreter.Interpreter(identity).interpret(bytecode.ByteCode(identity))


def text_of(blocks) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        for label, block in sorted(blocks.items()):
            print(label)
            block.dump()
    return out.getvalue()


@pytest.mark.parametrize("seed", range(30))
def test_ssa(seed):
    from numba.cuda.core import ssa

    from kukri.runtime.cuda.compile import quick_numba

    function = random_function(seed)
    expected = original(ssa)._run_ssa(frontend(function).blocks)
    assert text_of(quick_numba._run_ssa(frontend(function).blocks)) == text_of(expected)


@pytest.mark.parametrize("seed", range(30))
def test_liveness(seed):
    from numba.cuda.core import analysis

    from kukri.runtime.cuda.compile import quick_numba

    blocks = frontend(random_function(seed)).blocks
    found = analysis.compute_use_defs(blocks)
    asked = analysis.compute_cfg_from_blocks(blocks), blocks, found.usemap, found.defmap
    assert quick_numba._compute_live_map(*asked) == original(analysis).compute_live_map(*asked)


def test_all_steps_are_known():
    """This numba-cuda is one that the replacements were written for: kernels compile twice as fast."""
    from numba.core.types import functions
    from numba.cuda.core import analysis, ssa

    from kukri.runtime.cuda.compile import ptx_compiler, quick_numba

    assert ptx_compiler  # which replaces them
    assert ssa._run_ssa is quick_numba._run_ssa
    assert analysis.compute_live_map is quick_numba._compute_live_map
    step = quick_numba.lowering.Lower._find_singly_assigned_variable
    assert step is quick_numba._find_singly_assigned_variable
    assert functions.BaseFunction.get_call_type.__module__ == quick_numba.__name__


def test_another_numba_is_left_alone():
    from kukri.runtime.cuda.compile import quick_numba

    assert not quick_numba._is_known("ssa", "def _run_ssa(blocks): ...")
