"""Whether the card computes what the reference machine and NumPy do: see bench_cuda.py."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from cuda_bench.models import DATA, load_fixture, random_model

from kukri.quant.errors import UnsupportedModel
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.lowering.cards import CardGroup
from kukri.runtime.cuda.lowering.support import matrices
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.cuda.team import CudaTeam
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.tensor_split import tensor_parts
from kukri.runtime.ops import HeadMatMul, MatMul, MoE, Program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.runtime.cuda.instructions.checks import CHECKS, WARPGROUP_CHECKS
from kukri.tests.runtime.cuda.instructions.launching import on_the_card

TOKENS = 40  # of a case
MADE_LAYERS = 2


def feed(
    machine: CudaMachine | CudaTeam | ReferenceMachine, ids: np.ndarray, chunks: tuple[int, ...], n_pages: int
) -> np.ndarray:
    table, at = PageTable(n_pages), 0
    logits: list[np.ndarray] = []
    while at < len(ids):
        n = min(chunks[len(logits) % len(chunks)], len(ids) - at)
        table.extend(0, n)
        rows = np.arange(n, dtype=np.int32)
        batch = Batch(
            ids[at : at + n].astype(np.int32),
            np.zeros(n, np.int32),
            rows + at,
            rows,
            np.full(n, len(ids), np.int32),
        )
        logits.append(machine.step(batch, table).copy())
        at += n
    return np.concatenate(logits)


def mean_kl(expected: np.ndarray, got: np.ndarray) -> float:
    p, q = (rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True) for rows in (expected, got))
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def conformance(names: list[str], kv_type: str = "auto", n_cards: int = 1) -> None:
    """Fixtures of these names, or all, on one card or on `n_cards` by tensors; a name that is SHAPE:TYPE is a
    random model of that shape with MADE_LAYERS layers."""
    counts = {"right": 0, "wrong": 0, "refused": 0}
    for case, make in cases(names):
        try:
            program, ids = make()
            machine = machine_of(program, kv_type, n_cards)
        except UnsupportedModel as problem:
            print(f"refused {case}: {problem}")
            counts["refused"] += 1
            continue
        expected = feed(ReferenceMachine(program, 3), ids, (512,), 3)
        quantised = not all_float(program) or kv_type not in ("auto", "f32")  # then activations are, too
        line, ok = [], True
        for chunks in ((512,), (1,), (5, 1, 17)):
            got, again = feed(machine, ids, chunks, 3), feed(machine, ids, chunks, 3)
            error, kl = (
                float(np.abs(got - expected).max()),
                mean_kl(expected.astype(float), got.astype(float)),
            )
            ok &= (kl < 0.01 if quantised else error < 2e-3) and bool((got == again).all())
            line.append(f"{error:.1e} kl {kl:.1e}{'' if (got == again).all() else ' NOT REPEATABLE'}")
        first = machine.machines[0] if isinstance(machine, CudaTeam) else machine
        plans = [*first.plan(1, 1), *first.plan(min(len(ids), 17), 1, False, True)]
        machine.close()
        counts["right" if ok else "wrong"] += 1
        if not ok or names or "gguf" in case:
            attends = dict.fromkeys(launch.name for launch in plans if "attention" in launch.name)
            print("ok  " if ok else "BAD ", case, "; ".join(line), "by", *attends, flush=True)
    print(f"conformance: {', '.join(f'{n} {what}' for what, n in counts.items())}")


def cases(names: list[str]) -> Iterator[tuple[str, Callable[[], tuple[Program, np.ndarray]]]]:
    """Names of cases, and what makes their programs and token ids."""
    folder = Path(tempfile.mkdtemp())
    for path in DATA.glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")

    def fixture(name: str, file: str) -> tuple[Program, np.ndarray]:
        ids = np.load(folder / name / "reference.npz")["input_ids"]
        return load_fixture(folder / name, file), ids[:TOKENS]

    def made(shape: str, kind: str) -> tuple[Program, np.ndarray]:
        return random_model(shape, kind, MADE_LAYERS), np.arange(TOKENS) * 7919 % 1000

    for entry in json.loads((DATA / "manifest.json").read_text())["fixtures"]:
        if not names or entry["name"] in names:
            for file in ("config.json", *entry.get("gguf", ())):
                yield f"{entry['name']}/{file}", partial(fixture, entry["name"], file)
    for name in names:
        if ":" in name:
            yield name, partial(made, *name.split(":"))


def machine_of(program: Program, kv_type: str, n_cards: int) -> CudaMachine | CudaTeam:
    """One card's machine, or several by tensors. Raises UnsupportedModel."""
    if n_cards == 1:
        return CudaMachine(program, 3, kv_type=kv_type)

    def made(part: Program, device: Device, group: CardGroup) -> CudaMachine:
        device.use()
        return CudaMachine(part, 3, kv_type=kv_type, device=device, group=group)

    parts, devices = tensor_parts(program, n_cards), [Device(index=i) for i in range(n_cards)]
    assert all(a.reaches(b) for a in devices for b in devices)
    return CudaTeam(program, parts, devices, made)


def all_float(program: Program) -> bool:
    """Whether no weight is quantised."""
    products = [op for op in program.ops if isinstance(op, MatMul | MoE | HeadMatMul)]
    return all(w.format.is_float for op in products for group in matrices(op) for w in group)


def instructions() -> None:
    """Each PTX instruction by itself against NumPy."""
    device = Device()
    for check in [*CHECKS, *(WARPGROUP_CHECKS if device.warpgroups else [])]:
        check(on_the_card(device))
        print(f"instructions: {check.__name__[6:]} right")
    device.close()
