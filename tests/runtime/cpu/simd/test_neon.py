"""The levels of arm64 on other machines: the kernels are compiled for them, and read.

A process of its own pretends to be arm64 Linux and compiles (scripts/arm64_assembly.py); nothing of it runs
here, but test_emulated.py runs it. At level `i8mm` the products alone differ from `neon`. On arm64 itself all
other tests of the kernels run at these levels.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kukri.runtime.cpu.kernels.matmul.unpack import CODES
from kukri.tests.script_modules import SCRIPTS, load_script

# In one process, which compiles all kernels first.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("neon")]
SCRIPT = SCRIPTS / "arm64_assembly.py"

# They would take another minute. The formats' unpacking is in EMBEDS too, and their products are those of
# formats of the same shape (a scale for 32 or for 16 columns, with or without a minimum), which are here,
# as are attention to floats, to codes, and to codes of two types.
LEFT_OUT = [
    *(f"gemv.GEMVS[{name}]" for name in ("Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q3_K", "IQ4_XS")),
    *(f"gemm.GEMMS[{name}]" for name in ("Q4_1", "Q5_0", "Q5_1", "Q5_K", "Q3_K", "IQ4_XS")),
    *(f"prefill.PREFILL_ATTENTIONS[{name}]" for name in ("F32", "Q8_0", "F16/Q8_0", "F16/Q4_0")),
    *(f"decode.DECODE_ATTENTIONS[{name}]" for name in ("F32", "Q8_0", "F16/Q8_0", "F16/Q4_0")),
]

MATHS = {
    "erf",
    "sincos",
    "sin",
    "cos",
    "exp",
    "expf",
    "log",
    "log1p",
}  # of libm, or loops that LLVM knows as functions
SINGLE_NUMBERS = {  # kernels that compute a few functions of single numbers
    "pointwise.rope_angles",
    "pointwise.gated_gelu",
    "pointwise.grow_queries",
    "row_scores.divergences",
    "row_scores.log_sums",
    "recurrent.causal_conv",
    "recurrent.delta_rule",
    "recurrent.state_scan",
}
MEMORY = {"memset", "memcpy", "memmove"}


def compiled(level: str, options: list[str], home: Path) -> dict[str, str]:
    """The arm64 assembly of kernels at a level, by their names; `options` of the script choose them."""
    command = [sys.executable, SCRIPT, "--json", "--level", level, *options]
    environment = {**os.environ, "KUKRI_HOME": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr  # where LLVM cannot do something it says so and ends the process
    texts = json.loads(done.stdout)
    assert all(re.search(r"^\tret$", text, re.MULTILINE) for text in texts.values())
    return texts


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The assembly of each kernel at level `neon` by its name, without LEFT_OUT."""
    left_out = [option for name in LEFT_OUT for option in ("--leave-out", name)]
    return compiled("neon", left_out, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def matrix_products(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The assembly of the gemm of each kind of format at level `i8mm` by its name."""
    names = [f"gemm.GEMMS[{name}]" for name in ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q2_K", "IQ4_NL")]
    return compiled("i8mm", names, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def script() -> Any:
    """scripts/arm64_assembly.py, to read assembly with."""
    return load_script(SCRIPT.name)


def lines(text: str, mnemonic: str) -> list[str]:
    """The instructions of a kind with their operands."""
    return re.findall(rf"^\t({mnemonic}\b.*)", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("dot", r"sdot\tv\d+\.4s, v\d+\.16b, v\d+\.(16b|4b\[\d\])"),
        ("lookup16", r"tbl\tv\d+\.16b, { v\d+\.16b }, v\d+\.16b"),
        ("fma", r"fmla\tv\d+\.4s, v\d+\.4s, v\d+\.4s"),
        ("round_even", r"frint[xn]\tv\d+\.4s, v\d+\.4s"),
        ("absolute", r"fabs\tv\d+\.4s, v\d+\.4s"),
        ("to_f32", r"scvtf\tv\d+\.4s, v\d+\.4s"),
        ("to_i32", r"fcvtzs\tv\d+\.4s, v\d+\.4s"),
        ("loadv_f16", r"fcvtl\tv\d+\.4s, v\d+\.4h"),
        ("loadv_bf16", r"shll\tv\d+\.4s, v\d+\.4h, #16"),
        ("loadv_u16", r"ushll\tv\d+\.4s, v\d+\.4h, #0"),
        ("loadv_u8", r"ushll\tv\d+\.8h, v\d+\.8b, #0"),
        ("store_f16", r"fcvt\th\d+, s\d+"),
        ("splat_f32", r"(ld1r\t{ v\d+\.4s }|dup\tv\d+\.4s)"),
        ("prefetch", r"prfm\tpldl1keep, \[x\d+\]"),
        ("pause", r"(yield|hint\t#0?1)"),
        ("atomic_load", r"ldap?r\tx\d+, \[x\d+\]"),
    ],
)
def test_each_instruction_is_one_of_the_cpu(assembly, name, pattern):
    text = assembly[f"simd.{name}"]
    assert re.search(rf"^\t{pattern}", text, re.MULTILINE), text


def test_nothing_else_is_left_out(assembly):
    """Every block format has its three kernels here: gemm, gemv and embedding."""
    for table in ("gemm.GEMMS", "gemv.GEMVS", "embed.EMBEDS"):
        assert {f"{table}[{name}]" for name in CODES} - set(LEFT_OUT) <= set(assembly)


def test_products_of_8_bit_codes_are_sdot(assembly):
    products = {n: t for n, t in assembly.items() if re.search(rf"GEM(M|V)S\[({'|'.join(CODES)})\]", n)}
    assert len(products) >= 2 * len(CODES) - len(LEFT_OUT)
    for name, text in products.items():
        # One for four columns: a group of 32 takes 8 for a panel and row of activations.
        assert len(lines(text, "sdot")) >= 8, name
        assert lines(text, "fmla"), name
        assert not re.search(r"^\tsmull2?\tv", text, re.MULTILINE), (
            name
        )  # what LLVM makes of 8-bit products without sdot


def test_tiles_have_room_in_registers(assembly, matrix_products, script):
    """No accumulator of a register tile, and nothing that is multiplied, is on the stack meanwhile."""
    gemms = {name: text for name, text in assembly.items() if "GEMMS[Q" in name and "SKINNY" not in name}
    assert {name.split("[")[1] for name in gemms} >= {"Q4_0]", "Q8_0]", "Q6_K]", "Q2_K]", "Q4_K]"}
    for products, kernels in ((96, gemms), (48, matrix_products)):
        for name, text in kernels.items():
            loop = script.inner_loop(text)
            assert script.n_products(loop) == products, name  # of 2 panels of 4 rows, 6 tokens, 32 columns
            assert script.n_spills(loop) == 0, name


def test_matrix_products_are_smmla(matrix_products):
    for name, text in matrix_products.items():
        assert lines(text, "smmla"), name
        assert not lines(text, "sdot"), name


def test_scales_and_codes_are_unpacked_by_vectors(assembly):
    unpacking = [n for n in assembly if re.search(rf"(GEMMS|GEMVS|EMBEDS)\[({'|'.join(CODES)})\]", n)]
    for name in unpacking:
        kind = name.split("[")[1].rstrip("]")
        if kind in ("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"):
            assert lines(assembly[name], "tbl"), name
        if kind not in ("MXFP4", "NVFP4"):  # whose scales are bytes
            assert lines(assembly[name], "fcvtl"), name


def test_fp16_is_converted_by_the_cpu(assembly):
    """Weights, and entries of the cache, whose writing is a conversion of one number or of vectors."""
    halves = {n: t for n, t in assembly.items() if n.endswith("[F16]")}
    assert {n.split(".")[0] for n in halves} >= {"decode", "prefill", "embed", "gemv", "float_gemm"}
    for name, text in halves.items():
        assert re.search(r"^\tfcvt(l|n|\th\d+, s\d+|\ts\d+, h\d+)", text, re.MULTILINE), name


def test_attention_multiplies_by_vectors(assembly):
    kernels = {n: t for n, t in assembly.items() if "ATTENTIONS" in n}
    assert len(kernels) >= 4
    for name, text in kernels.items():
        assert len(re.findall(r"^\tfmla\tv\d+\.4s", text, re.MULTILINE)) >= 16, name


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0/Q4_0"])
def test_attention_over_codes_is_sdot(assembly, script, name):
    """Both digits of 4 queries times 8 keys, or dimensions, in 32 dimensions: 128 products of four."""
    for kernel in ("prefill.PREFILL", "decode.DECODE"):
        text = assembly[f"{kernel}_ATTENTIONS[{name}]"]
        assert script.n_products(script.inner_loop(text)) == 128
        assert not re.search(r"^\tsm(ul|la)l2?\tv", text, re.MULTILINE)


def test_no_kernel_calls_what_the_cpu_should_do(assembly):
    """No calls of __extendhfsf2 (fp16), __aarch64_ldadd8 (atomics) or of Python's error functions."""
    for name, text in assembly.items():
        own = set(re.findall(r"^([\w.$]+):", text, re.MULTILINE))
        called = set(re.findall(r"^\tbl?\t([A-Za-z_][\w.$]*)", text, re.MULTILINE)) - own
        allowed = MEMORY | (MATHS if name in SINGLE_NUMBERS else set())
        assert called <= allowed, name
        if lines(text, "blr"):
            # The team, which calls kernels, and what yields the processor while it waits for another one.
            assert name in ("team.lead", "team.follow", "exchange.await_rows"), name
