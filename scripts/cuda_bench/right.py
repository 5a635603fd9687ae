"""Whether the card computes what the reference machine and NumPy do: see bench_cuda.py."""

from __future__ import annotations

import importlib.util
import json
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from cuda_bench.models import DATA, load_fixture

from kukri.quant.errors import UnsupportedModel
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.lowering.support import matrices
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.ops import HeadMatMul, MatMul, MoE
from kukri.runtime.reference.machine import ReferenceMachine


def feed(
    machine: CudaMachine | ReferenceMachine, ids: np.ndarray, chunks: tuple[int, ...], n_pages: int
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


def conformance(names: list[str], kv_type: str = "auto") -> None:
    folder = Path(tempfile.mkdtemp())
    for path in DATA.glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    manifest = json.loads((DATA / "manifest.json").read_text())["fixtures"]
    right = wrong = refused = 0
    for entry in manifest:
        if names and entry["name"] not in names:
            continue
        for file in ("config.json", *entry.get("gguf", ())):
            case = f"{entry['name']}/{file}"
            try:
                program = load_fixture(folder / entry["name"], file)
                ids = np.load(folder / entry["name"] / "reference.npz")["input_ids"]
                ids = ids[:40]
                expected = feed(ReferenceMachine(program, 3), ids, (512,), 3)
                machine = CudaMachine(program, 3, kv_type=kv_type)
            except UnsupportedModel as problem:
                print(f"refused {case}: {problem}")
                refused += 1
                continue
            products = [op for op in program.ops if isinstance(op, MatMul | MoE | HeadMatMul)]
            floats = (w.format.is_float for op in products for group in matrices(op) for w in group)
            quantised = not all(floats) or kv_type not in ("auto", "f32")  # then activations are, too
            line = []
            ok = True
            for chunks in ((512,), (1,), (5, 1, 17)):
                got, again = feed(machine, ids, chunks, 3), feed(machine, ids, chunks, 3)
                error, kl = (
                    float(np.abs(got - expected).max()),
                    mean_kl(expected.astype(float), got.astype(float)),
                )
                ok &= (kl < 0.01 if quantised else error < 2e-3) and bool((got == again).all())
                line.append(f"{error:.1e} kl {kl:.1e}{'' if (got == again).all() else ' NOT REPEATABLE'}")
            plans = [*machine.plan(1, 1), *machine.plan(min(len(ids), 17), 1, False, True)]
            machine.close()
            right, wrong = right + ok, wrong + (not ok)
            if not ok or names or "gguf" in file:
                attends = dict.fromkeys(launch.name for launch in plans if "attention" in launch.name)
                print("ok  " if ok else "BAD ", case, "; ".join(line), "by", *attends)
    print(f"conformance: {right} right, {wrong} wrong, {refused} refused")


def instructions() -> None:
    """Each PTX instruction by itself against NumPy."""
    path = Path(__file__).resolve().parents[2] / "tests/runtime/cuda/instructions.py"
    spec = importlib.util.spec_from_file_location("instructions", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    device = Device()
    for check in [*module.CHECKS, *(module.WARPGROUP_CHECKS if device.warpgroups else [])]:
        check(module.on_the_card(device))
        print(f"instructions: {check.__name__[6:]} right")
    device.close()
