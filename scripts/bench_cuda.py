"""What the CUDA machine does on the card of this machine: right, how fast, and where a step's time goes.

    python scripts/bench_cuda.py conformance [FIXTURE …]    logits against the reference machine
    python scripts/bench_cuda.py instructions               each PTX instruction against NumPy
    python scripts/bench_cuda.py decode SHAPE TYPE [DEPTH …]   tokens a second, and each op's time and
    bandwidth
    python scripts/bench_cuda.py batch SHAPE TYPE           1, 2, 4, 8 sequences at once
    python scripts/bench_cuda.py prefill SHAPE TYPE [ROWS …]
    python scripts/bench_cuda.py sweep SHAPE TYPE [ROWS]    ways to share a product's work between warps
    python scripts/bench_cuda.py copy                       the card's copy bandwidth

Models are made up: random blocks in the shape of a published model.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from kukri.quant.block import QTensor
from kukri.quant.checkpoint import Checkpoint
from kukri.quant.formats import FORMATS
from kukri.quant.gguf import GGUFFile
from kukri.runtime.cache import Batch, PageTable
from kukri.runtime.config import config_from_gguf, config_from_hf
from kukri.runtime.cuda.driver import Device, Launch
from kukri.runtime.cuda.lowering.support import matrices
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.cuda.tuning import Shape, Shapes, Tile
from kukri.runtime.fields import UnsupportedModel
from kukri.runtime.ops import HeadMatMul, MatMul, MoE, Program
from kukri.runtime.program import build_program
from kukri.runtime.reference import ReferenceMachine
from kukri.runtime.weights import Weights

DATA = Path(
    os.environ.get("KUKRI_FIXTURES") or Path(__file__).resolve().parents[1] / "tests/data/conformance"
)
# hidden, layers, heads, kv_heads, head_dim, ffn, vocab, tied
SHAPES = {
    "smollm2-135m": (576, 30, 9, 3, 64, 1536, 49152, True),
    "llama-3.2-1b": (2048, 16, 32, 8, 64, 8192, 128256, True),
    "llama-3.1-8b": (4096, 32, 32, 8, 128, 14336, 128256, False),
}


def random_model(shape: str, kind: str) -> Program:
    """A program whose weights are random blocks, cut out of one pool."""
    hidden, layers, heads, kv_heads, head_dim, ffn, vocab, tied = SHAPES[shape]
    form, rng = FORMATS[kind], np.random.default_rng(0)
    pool = rng.integers(0, 256, (1 << 28) // form.type_size * form.type_size, dtype=np.uint8)
    blocks = pool.reshape(-1, form.type_size)
    scale = np.float16(0.01 / (16 if kind == "Q8_0" else 1))
    for at in {"Q4_0": [0], "Q8_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}[kind]:
        blocks[:, at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    tensors: dict[str, QTensor] = {}

    def matrix(name: str, rows: int, width: int) -> None:
        size = rows * form.row_bytes(width)
        data = np.resize(pool, size) if size > len(pool) else pool[:size]
        tensors[name] = QTensor(name, form, (rows, width), data.reshape(rows, -1))

    def ones(name: str, n: int) -> None:
        tensors[name] = QTensor(
            name, FORMATS["F32"], (n,), np.ones(n, np.float32).view(np.uint8).reshape(1, -1)
        )

    matrix("token_embd.weight", vocab, hidden)
    for i in range(layers):
        ones(f"blk.{i}.attn_norm.weight", hidden)
        ones(f"blk.{i}.ffn_norm.weight", hidden)
        matrix(f"blk.{i}.attn_q.weight", heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_k.weight", kv_heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_v.weight", kv_heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_output.weight", hidden, heads * head_dim)
        matrix(f"blk.{i}.ffn_gate.weight", ffn, hidden)
        matrix(f"blk.{i}.ffn_up.weight", ffn, hidden)
        matrix(f"blk.{i}.ffn_down.weight", hidden, ffn)
    ones("output_norm.weight", hidden)
    if not tied:
        matrix("output.weight", vocab, hidden)
    metadata = {
        "general.architecture": "llama",
        "llama.context_length": 131072,
        "llama.embedding_length": hidden,
        "llama.block_count": layers,
        "llama.feed_forward_length": ffn,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": 500000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": vocab,
    }
    config = config_from_gguf(metadata, tensors)
    return build_program(config, Weights(config, tensors))


def load_fixture(folder: Path, file: str) -> Program:
    if file.endswith(".gguf"):
        model = GGUFFile.open(folder / file)
        config = config_from_gguf(model.metadata, model.tensors)
    else:
        model = Checkpoint.open(folder)
        config = config_from_hf(json.loads((folder / file).read_text()), model.tensors)
    return build_program(config, Weights(config, model.tensors))


def feed(
    machine: CudaMachine | ReferenceMachine, ids: np.ndarray, chunks: tuple[int, ...], n_pages: int
) -> np.ndarray:
    table, logits, at = PageTable(n_pages), [], 0
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


def conformance(names: list[str]) -> None:
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
                machine = CudaMachine(program, 3)
            except UnsupportedModel as problem:
                print(f"refused {case}: {problem}")
                refused += 1
                continue
            products = [op for op in program.ops if isinstance(op, MatMul | MoE | HeadMatMul)]
            floats = (w.format.is_float for op in products for group in matrices(op) for w in group)
            quantised = not all(floats)  # then activations are, too
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
            machine.close()
            right, wrong = right + ok, wrong + (not ok)
            if not ok or names or "gguf" in file:
                print("ok  " if ok else "BAD ", case, "; ".join(line))
    print(f"conformance: {right} right, {wrong} wrong, {refused} refused")


def instructions() -> None:
    """Each PTX instruction by itself against NumPy."""
    path = Path(__file__).resolve().parents[1] / "tests/gpu/instructions.py"
    spec = importlib.util.spec_from_file_location("instructions", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    device = Device()
    for check in module.CHECKS:
        check(module.on_the_card(device))
        print(f"instructions: {check.__name__[6:]} right")
    device.close()


def seconds(device: Device, launches: list[Launch], repeats: int = 20) -> float:
    """The time of launches that follow each other, in a graph."""
    with device.capture() as graph:
        for launch in launches:
            device.launch(launch)
    times = []
    for _ in range(repeats):
        start, end = device.event(), device.event()
        start.record()
        device.run(graph)
        end.record()
        times.append(end.seconds_since(start))
    graph.close()
    return float(np.median(times))


def copy_bandwidth(device: Device) -> float:
    size = 2 << 30
    a, b = device.allocate(size), device.allocate(size)
    times = []
    for _ in range(10):
        start, end = device.event(), device.event()
        start.record()
        device.copy(a, b, size)
        end.record()
        times.append(end.seconds_since(start))
    return 2 * size / float(np.median(times))


def product_bytes(name: str, kind: str) -> float:
    """Bytes of weights that a product reads, by its label."""
    form = FORMATS[kind]
    rows, width = (int(n) for n in name.split()[-1].split("x"))
    return rows * width * form.bits_per_weight / 8


def profile(machine: CudaMachine, kind: str, n: int = 1) -> None:
    """Each op's launches by themselves, without looking ahead, which is of use to others only."""
    whole, shapes = seconds(machine.device, machine.plan(n, n)), machine.lowering.shapes
    machine.lowering.shapes = _Plain()
    launches = machine.lowering.launches(n, n, True)
    machine.lowering.shapes = shapes
    print(f"{len(launches)} launches, together {whole * 1e3:.3f} ms, ", end="")
    print(f"{seconds(machine.device, launches) * 1e3:.3f} ms without looking ahead")
    for name, count in Counter(launch.name for launch in launches).items():
        own = [launch for launch in launches if launch.name == name]
        time_ = seconds(machine.device, own)
        speed = (
            f"{product_bytes(name, kind) * count / time_ / 1e9:6.0f} GB/s" if name.startswith("mat") else ""
        )
        print(f"  {name:34} {count:4} x {time_ / count * 1e6:8.2f} us = {time_ * 1e3:7.3f} ms  {speed}")


def decode(shape: str, kind: str, depths: list[int]) -> None:
    start = time.perf_counter()
    program = random_model(shape, kind)
    made = time.perf_counter()
    n_pages = (max([256, *depths]) + 256) // 64
    machine = CudaMachine(program, n_pages)
    loaded = time.perf_counter()
    print(f"{shape} {kind} on {machine.device.name}: made {made - start:.1f} s, loaded {loaded - made:.1f} s")
    for depth in depths or [0]:
        table = PageTable(n_pages)
        table.extend(0, depth)
        for i in range(130):
            if i == 2:
                begin = time.perf_counter()
            table.extend(0, 1)
            batch = Batch(*(np.array([v], np.int32) for v in (i, 0, depth + i, 0)))
            logits = machine.step(batch, table)
        wall = (time.perf_counter() - begin) / 128
        assert np.isfinite(logits).all()
        print(f"decode 128 at depth {depth}: {1 / wall:.1f} tokens/s, {wall * 1e3:.3f} ms a step")
        profile(machine, kind)
    machine.close()


def batch(shape: str, kind: str) -> None:
    machine = CudaMachine(random_model(shape, kind), 8 * 8, max_sequences=8)
    for n in (1, 2, 4, 8):
        table = PageTable(64, 8)
        rows = np.arange(n, dtype=np.int32)
        for i in range(66):
            if i == 2:
                begin = time.perf_counter()
            for s in range(n):
                table.extend(s, 1)
            machine.step(Batch(rows, rows, np.full(n, i, np.int32), rows), table)
        wall = (time.perf_counter() - begin) / 64
        print(f"{n} sequences: {n / wall:.0f} tokens/s, {wall * 1e3:.3f} ms a step, on the card ", end="")
        print(f"{seconds(machine.device, machine.plan(n, n)) * 1e3:.3f} ms")
    profile(machine, kind, 8)
    machine.close()


def prefill(shape: str, kind: str, rows: list[int]) -> None:
    most = max(rows or [512])
    program = random_model(shape, kind)
    machine = CudaMachine(program, 4096 // 64, max_rows=most)
    for n in rows or [512]:
        times = []
        for _ in range(3):
            table = PageTable(64)
            begin = time.perf_counter()
            for at in range(0, 4096, n):
                table.extend(0, n)
                r = np.arange(n, dtype=np.int32)
                wanted = np.array([n - 1] if at + n == 4096 else [], np.int32)
                machine.step(Batch(r % 100, np.zeros(n, np.int32), r + at, wanted), table)
            times.append(time.perf_counter() - begin)
        print(f"prefill 4096 in chunks of {n}: {4096 / min(times):.0f} tokens/s")
    launches = machine.plan(most, 0, False, True)
    for name, count in Counter(launch.name for launch in launches).items():
        own = [launch for launch in launches if launch.name == name]
        time_ = seconds(machine.device, own, 5)
        print(f"  {name:34} {count:4} x {time_ / count * 1e6:8.2f} us = {time_ * 1e3:7.3f} ms")
    machine.close()


def sweep(shape: str, kind: str, rows: int = 1) -> None:
    machine = CudaMachine(random_model(shape, kind), 8 * rows, max_sequences=rows)
    lowering, device = machine.lowering, machine.device
    found: dict[str, list[tuple[float, Shape | Tile]]] = {}
    tried = [Shape(*s) for s in SHAPES_TRIED] if rows == 1 else [Tile(*t) for t in TILES_TRIED]

    def ask() -> None:
        for candidate in tried:
            lowering.shapes = _Always(candidate)
            lowering.launches(rows, rows, True)

    lowering.kernels.compile_all(ask)
    for candidate in tried:
        lowering.shapes = _Always(candidate)
        launches = lowering.launches(rows, rows, True)
        for name in {launch.name for launch in launches if launch.name.startswith("mat")}:
            own = [launch for launch in launches if launch.name == name]
            found.setdefault(name, []).append((seconds(device, own) / len(own), candidate))
    for name, results in found.items():
        print(name)
        for time_, candidate in sorted(results, key=lambda r: r[0])[:8]:
            print(
                f"   {time_ * 1e6:8.2f} us {product_bytes(name, kind) / time_ / 1e9:6.0f} GB/s  {candidate}"
            )
    machine.close()


SHAPES_TRIED = [
    (1, 1, 1, 32), (1, 2, 1, 32), (1, 4, 1, 32), (2, 1, 1, 16), (2, 2, 1, 16), (2, 4, 1, 16), (2, 7, 1, 16),
    (4, 1, 1, 8), (4, 2, 1, 8), (4, 4, 1, 8), (4, 1, 2, 16), (4, 2, 2, 16), (4, 4, 2, 16), (4, 1, 4, 32),
    (4, 2, 4, 32), (2, 1, 2, 32), (2, 2, 2, 32), (2, 4, 2, 32), (4, 4, 1, 16), (8, 1, 1, 4), (8, 2, 1, 4),
]  # fmt: skip
TILES_TRIED = [
    (2, 16, 16), (2, 8, 16), (2, 8, 8, 2), (2, 4, 8, 2), (2, 4, 16), (2, 8, 8, 3), (2, 4, 8, 3),
    (1, 8, 16), (1, 16, 32), (1, 8, 16, 2), (1, 4, 8, 3), (4, 16, 16), (4, 8, 8),
]  # fmt: skip


class _Plain(Shapes):
    def ahead(self, idle: bool) -> int:
        return 0


class _Always(_Plain):
    """One shape for every product that it suits: with 32 outputs a block, where codes are made of them."""

    def __init__(self, shape: Shape | Tile) -> None:
        self._shape = shape

    def row(self, name: str, blocks: int, n_out: int, matrices: int, emits: bool) -> Shape:
        assert isinstance(self._shape, Shape)
        fits = self._shape.rows % 32 == 0 or not emits
        return self._shape if fits else super().row(name, blocks, n_out, matrices, emits)

    def few(self, name: str, blocks: int, n_out: int, matrices: int, emits: bool, tokens: int) -> Tile:
        assert isinstance(self._shape, Tile)
        fits = self._shape.M % matrices == 0 and (self._shape.outputs(matrices) % 32 == 0 or not emits)
        return self._shape if fits else super().few(name, blocks, n_out, matrices, emits, tokens)


def main() -> None:
    command, *rest = sys.argv[1:]
    if command == "conformance":
        conformance(rest)
    elif command == "copy":
        device = Device()
        print(
            f"{device.name}, driver for CUDA {device.driver_version()}: "
            f"copies {copy_bandwidth(device) / 1e9:.0f} GB/s"
        )
    elif command == "instructions":
        instructions()
    elif command == "decode":
        decode(rest[0], rest[1], [int(d) for d in rest[2:]])
    elif command == "batch":
        batch(*rest)
    elif command == "prefill":
        prefill(rest[0], rest[1], [int(n) for n in rest[2:]])
    else:
        sweep(rest[0], rest[1], *(int(n) for n in rest[2:]))


if __name__ == "__main__":
    main()
