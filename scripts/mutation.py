"""Would the tests notice? Random small changes to modules, each run against the module's own test files.

    python scripts/mutation.py [-n 200] [--seed 1] [--jobs 2] [NAME …]

Draws `n` mutants of the modules in TARGETS (of those whose path contains a NAME): a comparison, a sign, an
arithmetic operator, a number, True and False, `and` and `or`. cosmic-ray finds the places and makes the
change (`pip install cosmic-ray`). Every mutant runs in a copy of the checkout. A mutant is killed if a test
fails or takes ten times as long as usual; the others are printed with their line, for somebody to look at:
a test is missing, the code is dead, or the change makes no difference. EQUIVALENT lists changes of the last
kind, which do not count.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import ndiff
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Module → the test files that are its own.
TARGETS = {
    "runtime/engine/engine.py": ["engine/test_engine.py", "engine/test_engine_states.py"],
    "runtime/engine/cache.py": ["engine/test_batch.py", "engine/test_cache.py", "engine/test_engine.py"],
    "runtime/engine/sampler.py": ["engine/test_sampler.py"],
    "runtime/engine/split.py": ["engine/test_split.py"],
    "runtime/config/rope.py": ["config/test_rope.py"],
    "runtime/model/memory_check.py": ["model/test_memory_check.py"],
    "quant/gguf/reader.py": ["gguf/test_reader.py", "gguf/test_split.py", "gguf/test_damaged.py"],
    "quant/rounding/gptq.py": ["rounding/test_gptq.py"],
    "cli/chat/conversation.py": ["chat/test_conversation.py"],
    "tokenizer/chat/budget.py": ["chat/test_template.py"],
}
# (module, the changed line without the spaces around it): the change makes no difference to any result.
EQUIVALENT: frozenset[tuple[str, str]] = frozenset()
KINDS = {
    "ReplaceComparisonOperator": "comparison",
    "ReplaceUnaryOperator": "sign",
    "ReplaceBinaryOperator": "arithmetic",
    "NumberReplacer": "number",
    "ReplaceTrueWithFalse": "constant",
    "ReplaceFalseWithTrue": "constant",
    "ReplaceAndWithOr": "and/or",
    "ReplaceOrWithAnd": "and/or",
    "AddNot": "not",
}
PATIENCE = 10.0  # times the usual duration of the tests, after which a mutant counts as killed


@dataclass(frozen=True)
class Mutant:
    """One change: `number` of the places in a module that an operator of cosmic-ray can change."""

    module: str
    operator: str
    number: int
    code: str

    @property
    def kind(self) -> str:
        return KINDS[self.operator.split("/")[1].split("_")[0]]

    def change(self) -> str:
        """The changed lines, old and new."""
        before = (ROOT / self.module).read_text("utf-8").splitlines()
        lines = [line for line in ndiff(before, self.code.splitlines()) if line[0] in "+-"]
        return "\n".join(f"    {line}" for line in lines)

    def changed_line(self) -> str:
        before = (ROOT / self.module).read_text("utf-8").splitlines()
        return next((n.strip() for o, n in zip(before, self.code.splitlines(), strict=False) if o != n), "")


def tests_of(module: str) -> list[str]:
    part = "tests/runtime/" if module.startswith("runtime/") else f"tests/{module.split('/')[0]}/"
    return [part + name for name in TARGETS[module]]


def mutants(module: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of operators and places."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import get_ast
    from cosmic_ray.mutating import mutate_code

    source = (ROOT / module).read_text("utf-8")
    for name in plugins.operator_names():
        family, _, change = name.split("/")[1].partition("_")
        if family not in KINDS or change.startswith("BitOr"):  # `|` stands in annotations
            continue
        operator: Any = plugins.get_operator(name)()
        places = sum(len([*operator.mutation_positions(node)]) for node in _nodes(get_ast(source)))
        for number in range(places):
            code = mutate_code(source, operator, number)
            if code is None or code == source:
                continue
            mutant = Mutant(module, name, number, code)
            if not mutant.changed_line().startswith("@dataclass("):  # frozen or not, results are the same
                yield mutant


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def draw(modules: list[str], n: int, seed: int) -> list[Mutant]:
    """`n` mutants: a module by the number of its lines, then a kind, then one of that kind."""
    chance = random.Random(seed)
    found: dict[str, dict[str, list[Mutant]]] = {}
    for module in modules:
        by_kind: dict[str, list[Mutant]] = {}
        for mutant in mutants(module):
            by_kind.setdefault(mutant.kind, []).append(mutant)
        found[module] = by_kind
    lines = [len((ROOT / module).read_text("utf-8").splitlines()) for module in modules]
    drawn: dict[Mutant, None] = {}
    most = sum(len(each) for by_kind in found.values() for each in by_kind.values())
    while len(drawn) < min(n, most):
        by_kind = found[chance.choices(modules, lines)[0]]
        if by_kind:
            drawn[chance.choice(by_kind[chance.choice(sorted(by_kind))])] = None
    return [*drawn]


class Copy:
    """A copy of the checkout, in which one mutant at a time is run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "kukri"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)  # noqa: S607 - git on the PATH
        for name in filter(None, listed.stdout.decode().split("\0")):
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "KUKRI_HOME": str(folder / "home"),
        }

    def run(self, module: str, seconds: float | None) -> tuple[bool, float]:
        """Whether the module's tests pass, and how long they take."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests_of(module)]
        start = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=self._environment,
                capture_output=True,
                timeout=seconds,
                check=False,
            )
            passed = done.returncode == 0
        except subprocess.TimeoutExpired:
            passed = False
        return passed, time.monotonic() - start

    def survives(self, mutant: Mutant, usual: float) -> bool:
        path = self.root / mutant.module
        before = path.read_bytes()
        path.write_text(mutant.code, "utf-8")
        try:
            return self.run(mutant.module, PATIENCE * usual + 10)[0]
        finally:
            path.write_bytes(before)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    modules = [m for m in TARGETS if not args.names or any(name in m for name in args.names)]
    chosen = draw(modules, args.n, args.seed)
    with tempfile.TemporaryDirectory(prefix="kukri-mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        first = Copy(Path(folder) / "0")
        usual = {}
        for module in sorted({mutant.module for mutant in chosen}):
            first.run(module, None)  # compiles kernels
            passed, usual[module] = first.run(module, None)
            if not passed:
                raise SystemExit(f"the tests of {module} fail without a change")
        copies.put(first)
        for i in range(1, args.jobs):
            copies.put(Copy(Path(folder) / str(i)))

        def check(mutant: Mutant) -> tuple[Mutant, bool]:
            copy = copies.get()
            try:
                return mutant, copy.survives(mutant, usual[mutant.module])
            finally:
                copies.put(copy)

        lived: list[Mutant] = []
        equal = 0
        with ThreadPoolExecutor(args.jobs) as pool:
            for done, (mutant, survived) in enumerate(pool.map(check, chosen), 1):
                if survived and (mutant.module, mutant.changed_line()) in EQUIVALENT:
                    equal += 1
                elif survived:
                    lived.append(mutant)
                    print(f"{mutant.module} ({mutant.kind}) survived:\n{mutant.change()}", flush=True)
                print(f"{done} of {len(chosen)}, {len(lived)} alive", end="\r", file=sys.stderr)
    counted = len(chosen) - equal
    killed = counted - len(lived)
    share = f"{100 * killed / counted:.1f} %" if counted else "-"
    print(f"{killed} of {counted} mutants killed ({share}); {equal} more change no result")
    drawn, alive = Counter(m.module for m in chosen), Counter(m.module for m in lived)
    for module in modules:
        print(f"  {module}: {drawn[module] - alive[module]} of {drawn[module]} do not survive")


if __name__ == "__main__":
    main()
