"""Mixtures of experts on the CPU machine against the reference machine: formats, choices, rows, threads."""

from __future__ import annotations

import gguf.quants
import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.errors import UnsupportedModel
from kukri.quant.formats import FORMATS
from kukri.quant.gguf.reader import GGUFFile
from kukri.quant.rounding.encode import encode
from kukri.runtime import ops
from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.cpu.abi.instructions import Instructions
from kukri.runtime.cpu.kernels import GEMVS
from kukri.runtime.cpu.machine import CpuMachine
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights

from ...fuzz.seeds import gguf_seeds

VOCAB, HIDDEN, WIDTH = 40, 64, 96


def matrix(rng: np.random.Generator, rows: int, width: int, kind: str) -> QTensor:
    values = (rng.normal(size=(rows, width)) / np.sqrt(width)).astype(np.float32)
    form = FORMATS[kind]
    if form.is_float:
        halves = (values.view(np.uint32) >> 16).astype(np.uint16)
        data = {"F32": values, "F16": values.astype(np.float16), "BF16": halves}[kind].view(np.uint8)
        return QTensor("w", form, values.shape, data)
    if kind == "NVFP4":
        factor = float(np.float32(np.abs(values).max() / 2688))
        return QTensor("w", form, values.shape, encode(values / np.float32(factor), form), (factor,))
    return QTensor("w", form, values.shape, gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]))


def program(
    kind: str = "F32",
    *,
    up_kind: str | None = None,
    width: int = WIDTH,
    n_experts: int = 8,
    top: int = 3,
    biases: bool = False,
    activation: str = "silu",
    sinks: bool = False,
    **options: object,
) -> ops.Program:
    """Two layers of attention and experts; `options` are arguments of Route, and `limit` of MoE."""
    rng = np.random.default_rng(3)
    limit = float(options.pop("limit", 0.0))  # type: ignore[arg-type]
    b = {
        name: ops.Buffer(name, width)
        for name, width in {
            "x": HIDDEN,
            "h": HIDDEN,
            "q": 64,
            "k": 32,
            "v": 32,
            "a": 64,
            "scores": n_experts,
            "experts": top,
            "weights": top,
            "share": 1,
        }.items()
    }
    last = {name: ops.Buffer(f"last {name}", buffer.width, logits_rows=True) for name, buffer in b.items()}
    logits = ops.Buffer("logits", VOCAB, logits_rows=True)

    def vector(*shape: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)

    def expert_biases() -> tuple[np.ndarray, ...]:
        return tuple(vector(n_experts, n) for n in (width, width, HIDDEN)) if biases else ()

    def experts(rows: int, width: int, kind: str) -> tuple[QTensor, ...]:
        return tuple(matrix(rng, rows, width, kind) for _ in range(n_experts))

    flow: list[ops.Op] = [ops.Embed(b["x"], matrix(rng, VOCAB, HIDDEN, "F32"))]
    for layer in range(2):
        flow += [
            ops.RMSNorm(b["x"], b["h"], vector(HIDDEN), 1e-5),
            *(ops.MatMul(b["h"], b[n], matrix(rng, b[n].width, HIDDEN, "F32")) for n in "qkv"),
            ops.Attend(
                *(b["q"], b["k"], b["v"], b["a"]),
                layer=layer,
                heads=2,
                kv_heads=1,
                head_dim=32,
                scale=32**-0.5,
                sinks=vector(2) if sinks else None,
            ),
        ]
        if layer:
            flow += [ops.SelectRows(b["a"], last["a"]), ops.SelectRows(b["x"], last["x"])]
            b = last
        flow += [
            ops.MatMul(b["a"], b["x"], matrix(rng, HIDDEN, 64, "F32"), accumulate=True),
            ops.RMSNorm(b["x"], b["h"], vector(HIDDEN), 1e-5),
            ops.MatMul(b["h"], b["scores"], matrix(rng, n_experts, HIDDEN, "F32")),
            ops.Route(
                *(b["scores"], b["experts"], b["weights"]),
                **{"scoring": "softmax", "bias": vector(n_experts) if biases else None} | options,  # type: ignore[arg-type]
            ),
            ops.MatMul(b["h"], b["share"], matrix(rng, 1, HIDDEN, "F32")),
            ops.MoE(
                *(b["h"], b["experts"], b["weights"], b["h"]),
                experts(width, HIDDEN, kind),
                experts(width, HIDDEN, up_kind or kind),
                experts(HIDDEN, width, kind),
                activation,
                *(
                    (vector(n_experts, width), vector(n_experts, width), vector(n_experts, HIDDEN))
                    if biases
                    else ()
                ),
                limit=limit,
            ),
            ops.SigmoidGate(b["share"], b["h"]),
            ops.Add(b["h"], b["x"], 0.5),
        ]
    flow.append(ops.MatMul(b["x"], logits, matrix(rng, VOCAB, HIDDEN, "F32")))
    buffers = tuple({x.name: x for x in (*b.values(), *last.values(), logits)}.values())
    names = {op.out.name: op.out for op in flow if isinstance(op, ops.MatMul | ops.Embed | ops.RMSNorm)}
    buffers = tuple({x.name: x for x in (*buffers, *names.values(), *_attended(flow))}.values())
    return ops.Program(tuple(flow), buffers, (ops.CacheLayer(1, 32),) * 2, logits)


def _attended(flow: list[ops.Op]) -> list[ops.Buffer]:
    return [b for op in flow if isinstance(op, ops.Attend | ops.Route) for b in _written(op)]


def _written(op: ops.Attend | ops.Route) -> tuple[ops.Buffer, ...]:
    return (op.out,) if isinstance(op, ops.Attend) else (op.experts, op.routing_weights)


def logits(machine, chunks: tuple[int, ...]) -> np.ndarray:
    """Of all rows of one sequence, fed in chunks; of the last one only the first and last row have logits."""
    table, found = PageTable(4), []
    tokens = np.random.default_rng(1).integers(0, VOCAB, sum(chunks)).astype(np.int32)
    for n in chunks:
        first = int(table.lengths[0])
        table.extend(0, n)
        positions = np.arange(first, first + n, dtype=np.int32)
        logits_indices = np.unique([0, n - 1]).astype(np.int32)
        batch = Batch(tokens[first : first + n], np.zeros(n, np.int32), positions, logits_indices)
        found.append(machine.step(batch, table).copy())
    machine.close()
    return np.concatenate(found)


VARIANTS = {
    "softmax": {},
    "sigmoid": {"scoring": "sigmoid", "biases": True, "scale": 2.5},
    "groups": {"scoring": "sigmoid", "biases": True, "groups": 4, "top_groups": 2, "normalised": False},
    "one of many": {"n_experts": 37, "top": 1},
    "all": {"n_experts": 3, "top": 3},
    "clipped": {"biases": True, "limit": 1.5, "sinks": True},
    "gelu": {"activation": "gelu"},
    "gelu_tanh": {"activation": "gelu_tanh", "top": 2},
}
CHUNKS = (70, 1, 1, 7, 1)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("threads", [1, 3])
def test_floats(variant, threads):
    whole = program(**VARIANTS[variant])
    expected = logits(ReferenceMachine(whole, 4), CHUNKS)
    got = logits(CpuMachine(whole, 4, threads=threads), CHUNKS)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "MXFP4", "F16", "BF16"])
@pytest.mark.parametrize("variant", ["sigmoid", "clipped", "gelu"])
def test_formats(kind, variant):
    """INT8 activations are a little off; the number of threads changes nothing at all."""
    whole = program(kind, **VARIANTS[variant])
    expected = logits(ReferenceMachine(whole, 4), CHUNKS)
    one, many = (logits(CpuMachine(whole, 4, threads=n, kv_type="f32"), CHUNKS) for n in (1, 3))
    np.testing.assert_array_equal(one, many)
    error = np.sqrt(np.mean((one - expected) ** 2) / np.mean(expected**2))
    assert error < (1e-2 if not FORMATS[kind].is_float else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("up_kind", ["NVFP4", "Q8_0"])
def test_experts_with_factors_of_their_own(up_kind):
    whole = program("NVFP4", up_kind=up_kind, width=128)
    expected = logits(ReferenceMachine(whole, 4), CHUNKS)
    got = logits(CpuMachine(whole, 4, threads=2, kv_type="f32"), CHUNKS)
    assert np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)) < 1e-2


@pytest.mark.slow
def test_gate_and_up_of_different_formats():
    whole = program("Q8_0", up_kind="Q5_0", **VARIANTS["clipped"])
    expected = logits(ReferenceMachine(whole, 4), CHUNKS)
    got = logits(CpuMachine(whole, 4, threads=2, kv_type="f32"), CHUNKS)
    assert np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)) < 1e-2


@pytest.mark.slow
def test_sinks_in_an_8_bit_cache():
    whole = program("Q8_0", **VARIANTS["clipped"])
    exact, coarse = (logits(CpuMachine(whole, 4, threads=2, kv_type=k), CHUNKS) for k in ("f32", "q8_0"))
    error = np.sqrt(np.mean((coarse - exact) ** 2) / np.mean(exact**2))
    assert 0 < error < 2e-2


def test_experts_of_different_formats_are_refused():
    whole = program("Q8_0")
    moe = next(op for op in whole.ops if isinstance(op, ops.MoE))
    other = matrix(np.random.default_rng(0), WIDTH, HIDDEN, "F32")
    object.__setattr__(moe, "gate", (*moe.gate[:-1], other))
    with pytest.raises(UnsupportedModel, match="different formats"):
        CpuMachine(whole, 4, threads=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        ("Q4_0", {"n_experts": 8, "top": 2}),  # as Mixtral
        ("MXFP4", {"n_experts": 32, "top": 4, **VARIANTS["clipped"]}),  # as gpt-oss
    ],
    ids=["mixtral", "gpt-oss"],
)
def test_a_token_reads_the_active_parameters(shape, monkeypatch):
    """Bytes of weights that the products of a decode step read, by their argument records."""
    kind, variant = shape
    whole = program(kind, **variant)
    read: dict[int, int] = {}  # bytes by list of instructions
    choices = []
    append = Instructions.append

    def counting(self, kernel, record, *others, **values):
        if kernel in GEMVS.values():
            panels = values["n_panels"] * (2 if values.get("gate") else 1)
            read[id(self)] = read.get(id(self), 0) + panels * values["panel_bytes"]
            choices.append(bool(values.get("expert")))
        append(self, kernel, record, *others, **values)

    monkeypatch.setattr(Instructions, "append", counting)
    CpuMachine(whole, 4, threads=1).close()
    active = 0.0
    for op in whole.ops:
        if isinstance(op, ops.MatMul):
            active += op.weight.n_bytes
        elif isinstance(op, ops.MoE):
            every = sum(tensor.n_bytes for tensor in (*op.gate, *op.up, *op.down))
            active += every * op.experts.width / len(op.up)
    assert sum(choices) == 2 * 2 * variant["top"]  # layers, products a choice, choices
    assert len(read) == 1
    assert active <= sum(read.values()) < 1.1 * active


@pytest.mark.parametrize("missing", ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"])
def test_experts_that_lack_one_of_their_biases(tmp_path, missing):
    """A kernel computes gate and up together; a bias that a file lacks is zero, and not read from nowhere."""
    (seed,) = [seed for seed in gguf_seeds(tmp_path) if seed.name == "gpt-oss"]
    path = tmp_path / "gpt-oss.gguf"
    path.write_bytes(seed.raw)
    file = GGUFFile.open(path)
    tensors = {name: t for name, t in file.tensors.items() if name != f"blk.0.{missing}.bias"}
    assert len(tensors) == len(file.tensors) - 1
    config = config_from_gguf(file.metadata, tensors)
    made = build_program(config, Weights(config, tensors))
    expected = logits(ReferenceMachine(made, 4), (8, 1, 1))
    np.testing.assert_allclose(logits(CpuMachine(made, 4), (8, 1, 1)), expected, atol=2e-3)
