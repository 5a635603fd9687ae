"""The rules that no single module can see: which room imports which, how large rooms and functions may be,
and that nothing states where it was built.

A room is a folder with Python files: "runtime.cpu.kernels.matmul" is runtime/cpu/kernels/matmul/. Imports
point down: cli → runtime → quant; tokenizer imports no sibling, and only runtime.model, runtime.answers,
runtime.embedding and runtime.serve import it. From the package itself rooms may import `KukriError`, the
base of all errors, which is defined there because quant and tokenizer have no sibling to take it from; cli,
runtime.serve, runtime.response_cache and runtime.batch.on_ray may import `__version__`. For the same reason
the module `untrusted`, by which both open files, lies there; a row says who may import it. `__main__.py` is
the one module outside of cli that imports it.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("cli", "runtime", "quant", "tokenizer")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
BELOW = {"untrusted"}  # modules of the package itself, below all rooms
MOST_FILES = 16  # Python files in a room
MOST_LINES = 80  # of a function that is no kernel

# What computes a model's layers; the machines and the rooms above them read it.
_PROGRAM = "runtime.ops runtime.config"
_ENGINE = "runtime.engine runtime.engine.sampling"
_ANSWERS = "runtime.answers runtime.answers.structured"
_SERVE = (
    "runtime.serve.anthropic runtime.serve.http runtime.serve.inspect runtime.serve.ollama "
    "runtime.serve.openai"
)
_CPU_BASE = "quant.jit quant.jit.simd runtime.cpu.abi runtime.cpu.simd"
_CUDA_BASE = "runtime.cuda.abi runtime.cuda.compile runtime.cuda.ptx"

ROOMS = {  # room → the rooms that it may import beside itself
    # cli: a client of the library
    "cli": "cli.commands cli.console cli.settings runtime.hub runtime.engine quant tokenizer",
    "cli.commands": "cli.batch cli.bench cli.bench.serving cli.chat cli.connect cli.console "
    "cli.embedding cli.eval cli.explain "
    "cli.generation cli.keeping cli.run cli.settings quant quant.jit "
    f"runtime.hub {_ANSWERS} runtime.batch runtime.model runtime.serve runtime.serve.http {_ENGINE} "
    "runtime.response_cache runtime.routing "
    "runtime.evaluation runtime.cpu runtime.cuda.compile "
    "runtime.cuda.driver",
    "cli.commands.models": "cli.console cli.generation cli.quantize cli.settings quant "
    "quant.recipes tokenizer runtime.adapters runtime.hub runtime.model runtime.sizing",
    "cli.quantize": "cli.console cli.eval quant quant.formats quant.recipes tokenizer runtime.calibration "
    "runtime.hub runtime.model",
    "cli.batch": "cli.console cli.generation runtime.batch runtime.batch.on_ray runtime.engine.sampling "
    "runtime.hub runtime.serve.on_ray",
    "cli.bench": f"cli.console quant quant.jit runtime.adapters runtime.calibration runtime.model {_ENGINE} "
    "runtime.ops runtime.sizing runtime.cpu runtime.cuda.driver",
    "cli.bench.serving": "cli.connect cli.console quant runtime.hub",
    "cli.connect": f"untrusted cli.chat cli.console cli.generation {_ENGINE}",
    "cli.chat": f"untrusted cli.console cli.explain cli.generation quant {_ENGINE} {_ANSWERS} runtime.model",
    "cli.run": "cli.chat cli.console cli.generation cli.keeping tokenizer "
    f"{_ANSWERS} runtime.model {_ENGINE}",
    "cli.keeping": "cli.chat cli.console cli.settings quant runtime.hub runtime.model runtime.sessions",
    "cli.explain": f"cli.console quant tokenizer runtime.cpu {_ENGINE} "
    "runtime.inspection runtime.inspection.page runtime.model runtime.sizing",
    "cli.embedding": "cli.console cli.generation",
    "cli.eval": "cli.console cli.generation quant runtime.adapters runtime.batch "
    "runtime.engine.sampling "
    "runtime.hub runtime.model runtime.evaluation runtime.routing tokenizer",
    "cli.generation": f"untrusted cli.console quant runtime.adapters {_ANSWERS} runtime.hub runtime.model "
    f"runtime.response_cache runtime.routing runtime.sessions {_ENGINE}",
    "cli.settings": "cli.console quant runtime.hub runtime.model",
    "cli.console": "quant quant.checkpoint quant.gguf runtime.hub runtime.model",
    # runtime, from the top: names and text in, text out
    "runtime": "",
    "runtime.batch": "untrusted quant runtime.engine.sampling runtime.model runtime.serve runtime.serve.http",
    "runtime.batch.on_ray": "quant runtime.batch runtime.cpu runtime.model runtime.serve.on_ray",
    "runtime.routing": f"untrusted quant runtime.answers runtime.model {_ENGINE}",
    "runtime.response_cache": f"untrusted quant runtime.answers runtime.model {_ENGINE}",
    "runtime.hub": "untrusted quant quant.checkpoint",
    "runtime.adapters": f"untrusted quant quant.checkpoint quant.formats quant.gguf {_PROGRAM} runtime.archs "
    "runtime.export runtime.weights",
    "runtime.answers": f"tokenizer tokenizer.chat tokenizer.chat.output tokenizer.chat.output.families "
    f"{_ENGINE} runtime.engine.beams runtime.engine.scheduling runtime.answers.structured",
    "runtime.answers.structured": (
        "tokenizer tokenizer.chat.output runtime.engine runtime.answers.structured.calls"
    ),
    "runtime.answers.structured.calls": (
        "tokenizer tokenizer.chat.output runtime.engine runtime.answers.structured"
    ),
    "runtime.serve": "quant tokenizer runtime.answers runtime.response_cache runtime.routing "
    f"runtime.model {_ENGINE} {_SERVE} runtime.serve.on_ray",
    "runtime.serve.on_ray": "quant runtime.adapters runtime.hub runtime.model runtime.serve "
    "runtime.serve.http",
    **dict.fromkeys(
        _SERVE.split(),
        f"quant tokenizer runtime.hub runtime.answers runtime.model {_ENGINE} "
        "runtime.serve runtime.serve.http",
    ),
    "runtime.serve.inspect": f"{_ENGINE} runtime.inspection runtime.inspection.page runtime.model "
    "runtime.serve runtime.serve.http runtime.sizing",
    "runtime.sizing": f"quant quant.recipes {_PROGRAM} runtime.program runtime.weights runtime.engine "
    "runtime.model",
    "runtime.model": "untrusted runtime quant quant.checkpoint quant.gguf quant.jit quant.recipes "
    "tokenizer tokenizer.chat tokenizer.readers "
    f"{_PROGRAM} runtime.program runtime.weights {_ENGINE} runtime.engine.scheduling "
    "runtime.engine.speculation runtime.model.speculation runtime.export "
    f"runtime.adapters {_ANSWERS} runtime.embedding runtime.inspection runtime.reference "
    "runtime.cpu runtime.cpu.abi runtime.cuda runtime.cuda.compile runtime.cuda.driver runtime.cuda.lowering",
    "runtime.model.speculation": f"quant {_PROGRAM} {_ENGINE} runtime.engine.speculation runtime.model "
    "runtime.program runtime.weights runtime.cpu runtime.cuda runtime.reference",
    "runtime.embedding": "untrusted quant quant.checkpoint runtime.config runtime.engine tokenizer",
    "runtime.sessions": f"untrusted quant runtime.answers runtime.model {_ENGINE} runtime.engine.scheduling",
    "runtime.inspection": f"quant {_PROGRAM} {_ENGINE}",
    "runtime.inspection.page": "",
    "runtime.calibration": f"quant quant.formats quant.recipes quant.rounding {_PROGRAM} runtime.program "
    "runtime.weights runtime.engine runtime.evaluation runtime.reference",
    "runtime.evaluation": "untrusted quant quant.checkpoint runtime.engine runtime.cpu",
    "runtime.export": "quant quant.formats quant.gguf runtime.archs runtime.config runtime.weights",
    # the machines
    "runtime.engine": f"quant {_PROGRAM} "
    "runtime.engine.beams runtime.engine.sampling runtime.engine.scheduling runtime.engine.speculation",
    "runtime.engine.scheduling": f"{_ENGINE} runtime.engine.beams runtime.engine.speculation",
    "runtime.engine.beams": f"{_ENGINE} runtime.engine.scheduling",
    "runtime.engine.speculation": _ENGINE,
    "runtime.engine.sampling": "runtime.engine",
    "runtime.reference": f"quant runtime.ops {_ENGINE}",
    "runtime.cpu": f"runtime quant quant.formats quant.jit runtime.ops {_ENGINE} "
    "runtime.cpu.abi runtime.cpu.kernels runtime.cpu.lowering runtime.cpu.simd",
    "runtime.cpu.lowering": f"quant quant.formats {_CPU_BASE} {_PROGRAM} runtime.cpu runtime.cpu.kernels",
    "runtime.cpu.kernels": _CPU_BASE,
    "runtime.cpu.kernels.attention": f"{_CPU_BASE} runtime.cpu.kernels.common",
    "runtime.cpu.kernels.matmul": f"{_CPU_BASE} quant.formats runtime.cpu.kernels.common",
    "runtime.cpu.kernels.common": _CPU_BASE,
    "runtime.cpu.abi": "quant.jit runtime.cpu.simd",
    "runtime.cpu.simd": "quant quant.formats quant.jit quant.jit.simd",
    "runtime.cuda": f"quant runtime.ops {_ENGINE} "
    "runtime.cuda.abi runtime.cuda.compile runtime.cuda.driver runtime.cuda.kernels.common "
    "runtime.cuda.lowering runtime.cuda.weights",
    "runtime.cuda.lowering": f"quant {_PROGRAM} runtime.engine runtime.cuda.lowering.matmul "
    "runtime.cuda.abi runtime.cuda.compile runtime.cuda.driver runtime.cuda.weights "
    "runtime.cuda.kernels.attention runtime.cuda.kernels.common "
    "runtime.cuda.kernels.experts runtime.cuda.kernels.matmul runtime.cuda.kernels.recurrent",
    "runtime.cuda.lowering.matmul": "quant runtime.ops runtime.cuda.abi runtime.cuda.lowering "
    "runtime.cuda.weights runtime.cuda.kernels.common runtime.cuda.kernels.matmul",
    "runtime.cuda.weights": "quant quant.formats runtime.cuda.driver",
    "runtime.cuda.kernels": _CUDA_BASE,
    "runtime.cuda.kernels.attention": f"{_CUDA_BASE} runtime.cuda.kernels.common",
    "runtime.cuda.kernels.matmul": f"{_CUDA_BASE} runtime.cuda.kernels.common",
    "runtime.cuda.kernels.experts": (f"{_CUDA_BASE} runtime.cuda.kernels.common runtime.cuda.kernels.matmul"),
    "runtime.cuda.kernels.recurrent": f"{_CUDA_BASE} runtime.cuda.kernels.common",
    "runtime.cuda.kernels.common": _CUDA_BASE,
    "runtime.cuda.compile": "quant quant.jit runtime.cuda.abi runtime.cuda.driver runtime.cuda.ptx",
    "runtime.cuda.driver": "runtime.cuda.abi",
    "runtime.cuda.abi": "",
    "runtime.cuda.ptx": "",
    # what a model is
    "runtime.program": f"{_PROGRAM} runtime.weights",
    "runtime.weights": "quant quant.checkpoint quant.formats runtime.archs runtime.config",
    "runtime.config": "quant runtime.archs runtime.ops",
    "runtime.archs": "",
    "runtime.ops": "quant",
    # quant: numbers in fewer bits
    "quant": "untrusted",
    "quant.formats": "quant",
    "quant.gguf": "quant quant.formats",
    "quant.checkpoint": "untrusted quant quant.formats quant.gguf quant.checkpoint.packed",
    "quant.checkpoint.packed": "quant quant.formats quant.gguf quant.checkpoint",
    "quant.rounding": "quant quant.formats quant.jit quant.jit.simd",
    "quant.recipes": "quant quant.formats quant.gguf quant.rounding",
    "quant.jit": "quant",
    "quant.jit.simd": "quant.jit",
    # tokenizer: text ↔ ids
    "tokenizer": "tokenizer.bpe tokenizer.bpe.compiled tokenizer.pretokenize "
    "tokenizer.chat tokenizer.readers",
    "tokenizer.bpe": "tokenizer tokenizer.pretokenize",
    "tokenizer.bpe.compiled": "tokenizer tokenizer.bpe tokenizer.pretokenize",
    "tokenizer.chat": "tokenizer",
    "tokenizer.chat.output": "tokenizer.chat.output.families",
    "tokenizer.chat.output.families": "tokenizer.chat.output",
    "tokenizer.pretokenize": "tokenizer",
    "tokenizer.pieces": "tokenizer",
    "tokenizer.readers": "untrusted tokenizer tokenizer.bpe tokenizer.pieces tokenizer.pretokenize",
}
ALLOWED = {room: set(allowed.split()) for room, allowed in ROOMS.items()}

# Imports that point up, (file, room), until what they import moves down. Add none: see the message below.
EXCEPTIONS = {
    ("runtime/cpu/abi/instructions.py", "runtime.cpu"),
    ("runtime/cpu/kernels/common/pointwise.py", "runtime.cpu.kernels.matmul"),
    ("runtime/cuda/compile/kernel.py", "runtime.cuda.kernels.matmul"),
}


def imports(path: Path, source: str) -> set[tuple[str, str]]:
    """(module, name) of each import of this package in a file, inside functions and under TYPE_CHECKING too.

    `from ..ops import Program` in runtime/engine/ is ("runtime.ops", "Program"), `import kukri.cli.main` is
    ("cli.main", ""). Relative imports are resolved; the module "" is the package itself.
    """
    package = path.relative_to(ROOT).parent.parts
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            named = node.module.split(".") if node.module else []
            if node.level:
                assert node.level <= len(package) + 1, f"{path}: a relative import leaves the package"
                module = [*package[: len(package) - node.level + 1], *named]
            elif named[:1] == ["kukri"]:
                module = named[1:]
            else:
                continue
            found |= {(".".join(module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {(".".join(name[1:]), "") for name in names if name[0] == "kukri"}
    return found


def room_of(module: str, name: str) -> str:
    """The room that an import reaches into; for a name of the package itself, the name.

    `from ..cpu import machine` reaches into runtime.cpu, and so does `from ..cpu.machine import CpuMachine`.
    """
    for parts in ([*module.split("."), name], module.split(".")):
        parts = [part for part in parts if part]
        folder = ROOT.joinpath(*parts)
        if parts and folder.is_dir():
            return ".".join(parts)
        if len(parts) > 1 and folder.with_suffix(".py").exists():
            return ".".join(parts[:-1])
        if len(parts) == 1 and parts[0] in BELOW:
            return parts[0]
    return name or module


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef, path: Path) -> bool:
    """Whether a function is compiled: it lies in a kernels folder or in a file whose name ends in "kernels",
    or a decorator compiles it."""
    decorators = {ast.unparse(decorator).split("(")[0] for decorator in function.decorator_list}
    compiled = any(name.split(".")[-1].endswith(("jit", "kernel", "intrinsic")) for name in decorators)
    return compiled or "kernels" in path.parts or path.stem.endswith("kernels")


def test_the_resolver_sees_all_kinds_of_imports():
    source = """
import numpy, kukri.cli.main as x
from .. import ops, __version__
from ...quant.block import QTensor
from . import team
from kukri.tokenizer import bpe
from ... import KukriError, untrusted
from ...untrusted import read_file
def f():
    from ...tokenizer.bpe.bpe import BPE
"""
    found = {room_of(*found) for found in imports(ROOT / "runtime/cpu/machine.py", source)}
    assert found == {
        "cli",
        "runtime.ops",
        "runtime",  # for a name that is no room
        "quant",
        "runtime.cpu",
        "tokenizer.bpe",
        "KukriError",
        "untrusted",
    }
    found = {room_of(*found) for found in imports(ROOT / "cli/main.py", "from .. import __version__, quant")}
    assert found == {"__version__", "quant"}


def test_the_table_has_a_row_for_every_room():
    rooms = {".".join(path.relative_to(ROOT).parent.parts) for path in SOURCES}
    assert rooms == set(ROOMS), "give a new folder a row in ROOMS, and remove the row of one that is gone"
    unknown = set().union(*ALLOWED.values()) - rooms - BELOW
    assert not unknown, f"ROOMS allows imports of {', '.join(sorted(unknown))}, which are no rooms"


def test_the_table_points_down():
    for room, allowed in ALLOWED.items():
        part = room.split(".")[0]
        if part != "cli":
            assert not {each for each in allowed if each.split(".")[0] == "cli"}, (
                f"{room} must not import cli"
            )
        if part == "quant":
            assert {each.split(".")[0] for each in allowed} <= {"quant", *BELOW}
        if part == "tokenizer":
            assert {each.split(".")[0] for each in allowed} <= {"tokenizer", *BELOW}
        if part == "runtime" and not room.startswith(
            ("runtime.model", "runtime.answers", "runtime.embedding", "runtime.serve")
        ):
            assert not {each for each in allowed if each.split(".")[0] == "tokenizer"}
        if ".kernels" in room:
            assert not {each for each in allowed if "lowering" in each}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path):
    file = path.relative_to(ROOT).as_posix()
    room = ".".join(path.relative_to(ROOT).parent.parts)
    allowed = (
        ALLOWED.get(room, set())
        | {room, "KukriError"}
        | (
            {"__version__"}
            if file.startswith(("cli/", "runtime/serve/", "runtime/response_cache/", "runtime/batch/on_ray/"))
            else set()
        )
    )
    reached = {room_of(*found) for found in imports(path, path.read_text("utf-8"))}
    excepted = {other for excepted, other in EXCEPTIONS if excepted == file}
    wrong = reached - allowed - excepted
    assert not wrong, (
        f"{file} imports {', '.join(sorted(wrong))}; {room} may only import {', '.join(sorted(allowed))}. "
        "Move what is imported to a lower room, or hand it in as an argument; if the import does point down, "
        f"add it to the row of {room} in ROOMS"
    )
    stale = excepted - reached
    assert not stale, f"{file} no longer imports {', '.join(sorted(stale))}: remove that from EXCEPTIONS"


@pytest.mark.parametrize(
    ("file", "rooms"),
    [
        ("__init__.py", {"quant", "runtime.adapters", "runtime.cuda.driver", "runtime.engine",
                         "runtime.engine.sampling", "runtime.hub", "runtime.answers",
                         "runtime.answers.structured", "runtime.model", "runtime.response_cache",
                         "runtime.sessions", "tokenizer", "tokenizer.chat"}),
        ("untrusted.py", {"KukriError"}),
        ("__main__.py", {"cli"}),
    ],
)  # fmt: skip
def test_imports_of_the_package_itself(file: str, rooms: set[str]):
    path = ROOT / file
    wrong = {room_of(*found) for found in imports(path, path.read_text("utf-8"))} - rooms
    assert not wrong, f"{file} must not import {', '.join(sorted(wrong))}"


def test_runtime_works_without_typer():
    """Neither typer nor anything else that draws on a terminal is imported below cli."""
    drawing = {"typer", "click", "rich", "prompt_toolkit", "tqdm"}
    for path in SOURCES:
        if path.relative_to(ROOT).parts[0] == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            wrong = drawing & {module.split(".")[0] for module in modules}
            assert not wrong, f"{path}: {', '.join(wrong)} belongs to cli; hand a callback in"


def test_no_room_has_too_many_files():
    for room in ROOMS:
        n = len(list(ROOT.joinpath(*room.split(".")).glob("*.py")))
        assert n <= MOST_FILES, f"{room} has {n} Python files, more than {MOST_FILES}: make two rooms of it"


def test_no_function_is_too_long():
    long = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_kernel(node, path):
                n = (node.end_lineno or node.lineno) - node.lineno + 1
                if n > MOST_LINES:
                    long.append(f"{path.relative_to(ROOT).as_posix()}: {node.name} ({n} lines)")
    assert not long, f"cut these into functions of at most {MOST_LINES} lines: {'; '.join(long)}"


def test_nothing_mentions_the_machine_it_was_built_on():
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("git does not read this checkout")
    needles = {str(path).encode() for path in (ROOT, Path.home(), sys.base_prefix) if len(str(path)) > 4}
    guilty = []
    for name in listed.stdout.decode("utf-8").split("\0"):
        path = ROOT / name
        if name and path.is_file():
            text = path.read_bytes()
            guilty += [f"{name}: {needle.decode()}" for needle in needles if needle in text]
    assert not guilty
