"""What the CUDA machine does on the card of this machine: right, how fast, and where a step's time goes.

    python scripts/bench_cuda.py all [--llama-bench PATH]   everything that is promised, and a table in
    the end; PATH: llama.cpp's, built for the card, which runs the same models in between
    python scripts/bench_cuda.py conformance [--cache TYPE] [FIXTURE …]   logits against the reference
    machine, with keys and values kept as f32, f16, q8_0 or q4_0
    python scripts/bench_cuda.py instructions               each PTX instruction against NumPy
    python scripts/bench_cuda.py decode SHAPE TYPE [DEPTH …]   tokens a second, and each op's time and
    bandwidth
    python scripts/bench_cuda.py batch SHAPE TYPE           1, 2, 4, 8 sequences at once
    python scripts/bench_cuda.py choose SHAPE TYPE          what it saves to choose tokens on the card
    python scripts/bench_cuda.py host SHAPE TYPE [VARIANT …]   what Python and the driver add to a step,
    by ways of waiting for the card and of copying
    python scripts/bench_cuda.py launches                   what it costs to go from op to op
    python scripts/bench_cuda.py latent [HEADS …]           a layer of latent attention, with and without
    tensor cores
    python scripts/bench_cuda.py prefill SHAPE TYPE [ROWS …]
    python scripts/bench_cuda.py recurrent [ROWS]           recurrent ops over a prompt, together and row by
    row
    python scripts/bench_cuda.py sweep SHAPE TYPE [ROWS]    ways to share a product's work between warps
    python scripts/bench_cuda.py wide SHAPE TYPE [ROWS …]   kernels and tiles for products of many rows
    python scripts/bench_cuda.py copy                       the card's copy bandwidth

Models are made up: random blocks in the shape of a published model.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from cuda_host import host
from cuda_latent import latent
from cuda_launches import launches as between_ops
from cuda_mixtures import MIXTURES, random_mixture
from cuda_models import DATA, SHAPES, load_fixture, random_model, write_model
from cuda_recurrent import recurrent

from kukri.cli.bench_measure import bytes_per_token
from kukri.cli.bench_plan import Test
from kukri.cli.bench_report import markdown_table
from kukri.quant.formats import FORMATS
from kukri.runtime.cache import Batch, PageTable
from kukri.runtime.cuda.driver import Device
from kukri.runtime.cuda.launch import Launch
from kukri.runtime.cuda.lowering.support import matrices
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.cuda.tuning import WIDE, Shapes, Tile, Wide
from kukri.runtime.fields import UnsupportedModel
from kukri.runtime.ops import HeadMatMul, MatMul, MoE, Program
from kukri.runtime.reference import ReferenceMachine
from kukri.runtime.sampler import Sampler, SamplingParams

Speeds = dict[str, float]  # tokens a second by the name of the test


def made_up(shape: str, kind: str) -> Program:
    return random_mixture(shape, kind) if shape in MIXTURES else random_model(shape, kind)


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
                attends = dict.fromkeys(launch.name for launch in plans if "attend" in launch.name)
                print("ok  " if ok else "BAD ", case, "; ".join(line), "by", *attends)
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
    for check in [*module.CHECKS, *(module.WARPGROUP_CHECKS if device.warpgroups else [])]:
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
    launches = machine.plan(n, n)
    print(f"{len(launches)} launches, together {seconds(machine.device, launches) * 1e3:.3f} ms")
    for name, count in Counter(launch.name for launch in launches).items():
        own = [launch for launch in launches if launch.name == name]
        time_ = seconds(machine.device, own)
        speed = (
            f"{product_bytes(name, kind) * count / time_ / 1e9:6.0f} GB/s" if name.startswith("mat") else ""
        )
        print(f"  {name:34} {count:4} x {time_ / count * 1e6:8.2f} us = {time_ * 1e3:7.3f} ms  {speed}")


def decode(shape: str, kind: str, depths: list[int]) -> Speeds:
    start = time.perf_counter()
    program = made_up(shape, kind)
    made = time.perf_counter()
    n_pages = (max([256, *depths]) + 256) // 64
    machine = CudaMachine(program, n_pages)
    loaded = time.perf_counter()
    print(f"{shape} {kind} on {machine.device.name}: made {made - start:.1f} s, loaded {loaded - made:.1f} s")
    speeds: Speeds = {}
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
        speeds["tg128" + (f" @ d{depth}" if depth else "")] = 1 / wall
    machine.close()
    return speeds


def batch(shape: str, kind: str) -> Speeds:
    speeds: Speeds = {}
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
        speeds[f"tg64, {n} sequences"] = n / wall
    profile(machine, kind, 8)
    machine.close()
    return speeds


def choose(shape: str, kind: str) -> None:
    """Steps whose logits all come back, and steps of which only the best tokens do; both with the sampler."""
    machine = CudaMachine(random_model(shape, kind), 4)
    vocab = machine.program.logits.width
    for name, params in (
        ("greedy", SamplingParams(temperature=0)),
        ("top-k 40", SamplingParams(seed=0)),
        ("penalty", SamplingParams(seed=0, repeat_penalty=1.1)),
    ):
        chosen: list[list[int]] = []
        walls = []
        for best in (False, True):
            table, sampler, history = PageTable(4), Sampler(params), [1]
            for i in range(130):
                if i == 2:
                    begin = time.perf_counter()
                table.extend(0, 1)
                step = Batch(*(np.array([v], np.int32) for v in (history[-1], 0, i, 0)))
                k = sampler.enough(vocab, len(history))
                found = machine.choose(step, table, k, vocab) if best else machine.step(step, table)
                history.append(sampler.sample(found[0], history))
            walls.append((time.perf_counter() - begin) / 128)
            chosen.append(history)
        assert chosen[0] == chosen[1]
        print(f"{name}: {walls[0] * 1e6:.0f} us a token with all logits, {walls[1] * 1e6:.0f} with the best")
    machine.close()


def prefill(shape: str, kind: str, rows: list[int]) -> Speeds:
    speeds: Speeds = {"pp4096": 0.0}
    most = max(rows or [512])
    program = made_up(shape, kind)
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
        speeds["pp4096"] = max(speeds["pp4096"], 4096 / min(times))
    launches = machine.plan(most, 0, False, True)
    for name, count in Counter(launch.name for launch in launches).items():
        own = [launch for launch in launches if launch.name == name]
        time_ = seconds(machine.device, own, 5)
        print(f"  {name:34} {count:4} x {time_ / count * 1e6:8.2f} us = {time_ * 1e3:7.3f} ms")
    machine.close()
    return speeds


def sweep(shape: str, kind: str, rows: int = 1) -> None:
    machine = CudaMachine(random_model(shape, kind), 8 * rows, max_sequences=rows)
    lowering, device = machine.lowering, machine.device
    found: dict[str, list[tuple[float, Tile]]] = {}
    tried = [Tile(*t) for t in (TILES_OF_ONE if rows <= 4 else TILES_OF_MORE)]

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
        for time_, candidate in sorted(results, key=lambda r: r[0])[:6]:
            print(
                f"   {time_ * 1e6:8.2f} us {product_bytes(name, kind) / time_ / 1e9:6.0f} GB/s  {candidate}"
            )
    machine.close()


def wide(shape: str, kind: str, rows: list[int]) -> None:
    """Each product of one layer of the shape, with each kernel and tile: right, and how fast."""
    rows = rows or [512, 1024, 2048]
    hidden, _, heads, kv_heads, head_dim, ffn, _, _ = SHAPES[shape]
    SHAPES["a layer"] = (hidden, 1, heads, kv_heads, head_dim, ffn, 512, True)
    program, most = random_model("a layer", kind), max(320, *rows)
    ids = np.random.default_rng(0).integers(0, 512, 300)
    expected = feed(ReferenceMachine(program, 5), ids, (300,), 5).astype(float)

    def begin(tile: Wide | None) -> CudaMachine:
        device = Device()
        device.warpgroups = device.warpgroups and tile is not None
        machine = CudaMachine(program, most // 64, max_rows=most, device=device)
        machine.lowering.shapes = _Always(tile) if tile else Shapes()
        return machine

    def compile_for(machine: CudaMachine) -> None:
        for tile in WIDE:
            machine.lowering.shapes = _Always(tile)
            machine.lowering.launches(300, 300, True, True)

    machine = begin(WIDE[0])
    tried = [None, *WIDE] if machine.device.warpgroups else [None]
    machine.lowering.kernels.compile_all(lambda: compile_for(machine))
    machine.close()
    found: dict[tuple[str, int], list[str]] = {}
    for tile in tried:
        machine = begin(tile)
        got, again = feed(machine, ids, (300,), 5), feed(machine, ids, (300,), 5)
        name = f"{tile.M} x {tile.ROWS}, {tile.resident}" if tile else "tiled"
        print(f"{name}: kl {mean_kl(expected, got.astype(float)):.1e}, same twice: {(got == again).all()}")
        for n in rows:
            launches = machine.lowering.launches(n, 0, False, True)
            for label in dict.fromkeys(a.name for a in launches if a.name.split("_")[0] in MANY):
                own = [launch for launch in launches if launch.name == label] * 8
                time_ = seconds(machine.device, own, 5) / len(own)
                operations = 2 * n * np.prod([float(size) for size in label.split()[-1].split("x")])
                text = f"{name}: {time_ * 1e6:.1f} us {operations / time_ / 1e12:.0f}"
                found.setdefault((label.split()[-1], n), []).append(text)
        machine.close()
    for (label, n), texts in found.items():
        print(f"{label} {n} rows, TFLOP/s: " + "; ".join(texts))


MANY = "tiled", "warpgroup"
TILES_OF_ONE = [
    (1, 4, 4), (1, 8, 8), (1, 16, 16), (1, 4, 8), (1, 16, 32), (2, 2, 4), (2, 4, 4), (2, 8, 8), (2, 16, 16),
    (2, 2, 8), (2, 4, 8), (2, 8, 16), (4, 2, 4), (4, 4, 4), (4, 8, 8),
]  # fmt: skip
TILES_OF_MORE = [
    (1, 8, 8), (1, 16, 16), (1, 4, 4), (2, 4, 4), (2, 8, 8), (2, 16, 16), (2, 4, 4, 4), (2, 8, 8, 2),
    (2, 4, 8, 2), (4, 4, 4), (4, 4, 4, 2), (4, 8, 8), (4, 4, 8), (2, 2, 4),
]  # fmt: skip


class _Always(Shapes):
    """One shape for every product that it suits: with 32 outputs a block, where codes are made of them."""

    def __init__(self, tile: Tile | Wide) -> None:
        self._tile = tile

    def few(self, name: str, blocks: int, n_out: int, matrices: int, emits: bool, tokens: int) -> Tile:
        assert isinstance(self._tile, Tile)
        fits = self._tile.M % matrices == 0 and (self._tile.outputs(matrices) % 32 == 0 or not emits)
        return self._tile if fits else super().few(name, blocks, n_out, matrices, emits, tokens)

    def many(self, rows: int, n_out: int, multiprocessors: int) -> Wide:
        assert isinstance(self._tile, Wide)
        return self._tile


PROMISED = [("llama-3.1-8b", "Q4_0"), ("llama-3.1-8b", "Q8_0"), ("llama-3.2-1b", "Q4_0")]


def everything(llama_bench: str | None) -> None:
    device = Device()
    name, copy = device.name, copy_bandwidth(device)
    device.close()
    instructions()
    conformance([])
    rows = []
    for shape, kind in PROMISED:
        speeds = prefill(shape, kind, [512, 1024, 2048]) | decode(shape, kind, [0, 8192]) | batch(shape, kind)
        print(f"{shape} {kind}: {speeds}", flush=True)
        peer = llama_speeds(llama_bench, shape, kind) if llama_bench else {}
        read = bytes_per_token(random_model(shape, kind), "f16", Test(0, 128, 0))
        for test, speed in speeds.items():
            other = peer.get(test)
            rows.append(
                (
                    f"{shape} {kind}",
                    test,
                    f"{speed:.0f}",
                    f"{other:.0f}" if other else "",
                    f"{speed / other:.2f}" if other else "",
                    f"{read * speed / copy:.0%}" if test == "tg128" else "",
                )
            )
    choose(*PROMISED[-1])
    host(*PROMISED[-1], ["spin"])
    print(f"\n{name}, copies {copy / 1e9:.0f} GB/s, tokens a second\n")
    header = ("model", "test", "kukri", "llama.cpp", "ratio", "of bandwidth")
    print(markdown_table(header, rows, left=(0, 1)))


def llama_speeds(program: str, shape: str, kind: str) -> Speeds:
    """What llama.cpp does in the same tests."""
    speeds: Speeds = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path, shape, kind)
        for flags in ("-p 4096 -n 128", "-p 0 -n 128 -d 8192"):
            command = [program, "-m", str(path), *f"{flags} -r 3 -ngl 99 -fa 1 -o json".split()]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"llama-bench {flags} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
                continue
            for found in json.loads(done.stdout):
                test = f"pp{found['n_prompt']}" if found["n_prompt"] else f"tg{found['n_gen']}"
                depth = found.get("n_depth", 0)
                speeds[test + (f" @ d{depth}" if depth else "")] = found["avg_ts"]
    return speeds


def main() -> None:
    command, *rest = sys.argv[1:]
    if command == "all":
        everything(rest[rest.index("--llama-bench") + 1] if "--llama-bench" in rest else None)
    elif command == "conformance":
        conformance(*((rest[2:], rest[1]) if rest[:1] == ["--cache"] else (rest,)))
    elif command == "latent":
        latent([int(n) for n in rest])
    elif command == "copy":
        device = Device()
        print(
            f"{device.name}, driver for CUDA {device.driver_version()}: "
            f"copies {copy_bandwidth(device) / 1e9:.0f} GB/s"
        )
    elif command == "recurrent":
        recurrent(seconds, *(int(n) for n in rest))
    elif command == "instructions":
        instructions()
    elif command == "decode":
        decode(rest[0], rest[1], [int(d) for d in rest[2:]])
    elif command == "batch":
        batch(*rest)
    elif command == "choose":
        choose(*rest)
    elif command == "wide":
        wide(rest[0], rest[1], [int(n) for n in rest[2:]])
    elif command == "launches":
        between_ops()
    elif command == "host":
        host(rest[0], rest[1], rest[2:])
    elif command == "prefill":
        prefill(rest[0], rest[1], [int(n) for n in rest[2:]])
    else:
        sweep(rest[0], rest[1], *(int(n) for n in rest[2:]))


if __name__ == "__main__":
    main()
