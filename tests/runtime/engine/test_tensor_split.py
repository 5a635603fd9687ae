"""Programs for machines that share the work of each layer, run side by side in NumPy, against the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kukri.quant.block import QTensor
from kukri.quant.errors import UnsupportedModel
from kukri.quant.formats import FORMATS
from kukri.runtime.engine.cache import PageTable
from kukri.runtime.engine.split import weight_bytes
from kukri.runtime.engine.tensor_split import tensor_parts
from kukri.runtime.ops import AllReduce, MatMul, MoE
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.tests.open_program import open_program


class SideBySide:
    """ReferenceMachines that run the parts of a program in step, and whose AllReduce is a sum."""

    def __init__(self, programs, n_pages, width):
        self.width = width  # of the logits
        self.machines = [ReferenceMachine(program, n_pages) for program in programs]
        self.max_rows, self.max_logits = self.machines[0].max_rows, self.machines[0].max_logits

    def step(self, batch, table):
        traces = [machine.trace(batch, table) for machine in self.machines]
        while True:
            stops = [self._to_the_next_sum(trace) for trace in traces]
            if stops[0] is None:
                break
            name = stops[0].x.name
            assert {stop.x.name for stop in stops} == {name}
            total = sum(machine.buffers[name] for machine in self.machines)
            for machine in self.machines:
                machine.buffers[name] = total.copy()
        logits = [machine.buffers[machine.program.logits.name] for machine in self.machines]
        if logits[0].shape[1] < self.width:
            return np.concatenate(logits, axis=1)
        for other in logits[1:]:
            np.testing.assert_array_equal(other, logits[0])
        return logits[0]

    @staticmethod
    def _to_the_next_sum(trace):
        return next((op for op in trace if isinstance(op, AllReduce)), None)


@pytest.fixture(scope="module")
def program_of(conformance):
    return lambda name: open_program(conformance(name))[1]


def compare(program, feed, n):
    ids = np.arange(17) * 7 % 40
    parts = tensor_parts(program, n)
    expected = feed(ReferenceMachine(program, 1), PageTable(1), ids, (9, 1, 4), known=True)
    got = feed(SideBySide(parts, 1, program.logits.width), PageTable(1), ids, (9, 1, 4), known=True)
    np.testing.assert_allclose(got, expected, atol=2e-4 * np.abs(expected).max())
    return parts


DENSE = ["llama", "qwen2", "qwen3", "gemma2", "cohere", "gpt-neox", "granite", "stablelm", "starcoder2"]
PACKED = ["llama-ct-int4", "llama-gptq-actorder", "llama-mlx", "llama-fp8-block"]
EXPERTS = ["qwen3-moe", "qwen2-moe", "mixtral", "gpt-oss-mxfp4", "glm4-moe"]


@pytest.mark.parametrize("name", [*DENSE, *PACKED, *EXPERTS])
def test_machines_together_compute_what_one_does(program_of, feed, name):
    program = program_of(name)
    parts = compare(program, feed, 2)
    assert sum(map(weight_bytes, parts)) < 1.75 * weight_bytes(program)
    for part in parts:
        assert len(part.layers) == len(program.layers)
        layers = zip(part.cache_layers, program.cache_layers, strict=True)
        assert all(2 * narrow.kv_heads == whole.kv_heads for narrow, whole in layers)


@pytest.mark.parametrize(("name", "n"), [("gpt2-original", 3), ("llama-gqa", 3), ("llama", 4)])
def test_more_than_two_machines(program_of, feed, name, n):
    compare(program_of(name), feed, n)


def test_an_adapter_beside_the_projections(program_of, feed):
    """A low-rank product beside o and down reads cut columns, so that its inner sum is added up first."""
    program, rng = program_of("llama"), np.random.default_rng(0)
    ops = []
    for op in program.ops:
        ops.append(op)
        if isinstance(op, MatMul) and op.accumulate:
            low = replace(op.x, name="low", width=4, logits_rows=op.x.logits_rows)
            if low.logits_rows:
                low = replace(low, name="low of the last")
            ops += [
                MatMul(op.x, low, floats(rng, 4, op.x.width)),
                MatMul(low, op.out, floats(rng, op.out.width, 4), accumulate=True),
            ]
    compare(replace(program, ops=tuple(ops), layers=()), feed, 2)


def floats(rng, outputs, inputs):
    values = rng.normal(0, 0.1, (outputs, inputs)).astype(np.float32)
    return QTensor("", FORMATS["F32"], values.shape, values.view(np.uint8))


@pytest.mark.parametrize(
    ("name", "n", "why"),
    [
        ("deepseek-v3", 2, "latent attention"),
        ("llama", 3, "4 key and value heads cannot be divided by 3"),
        ("falcon-h1", 2, "CausalConv"),
        ("olmo2", 2, "a norm over all heads"),
    ],
)
def test_models_that_cannot_be_shared_say_why(program_of, name, n, why):
    with pytest.raises(UnsupportedModel, match=f"cards cannot share.*{why}"):
        tensor_parts(program_of(name), n)


def test_tied_and_repeated_matrices_stay_one(program_of):
    for part in tensor_parts(program_of("qwen2"), 2):
        assert part.logits.width == program_of("qwen2").logits.width
        weights = [op.weight for op in part.ops if isinstance(op, MatMul)]
        assert weights[-1] is next(op.table for op in part.ops if hasattr(op, "table"))


def test_an_output_matrix_of_its_own_is_divided(program_of):
    program = program_of("llama")
    widths = [part.logits.width for part in tensor_parts(program, 4)]
    assert sum(widths) == program.logits.width
    assert all(width % 16 == 0 for width in widths[:-1])
    assert max(widths) - min(widths) <= 16


def test_each_layer_adds_up_twice(program_of):
    program = program_of("qwen3-moe")
    for part in tensor_parts(program, 2):
        sums = sum(isinstance(op, AllReduce) for op in part.ops)
        assert sums == 2 * (len(program.layers) - 1)
        for whole, narrow in zip(experts(program), experts(part), strict=True):
            assert 2 * narrow.down[0].shape[1] == whole.down[0].shape[1]
            assert narrow.down[0].shape[0] == whole.down[0].shape[0]


def experts(program):
    return [op for op in program.ops if isinstance(op, MoE)]


def test_parts_of_columns_are_whole_blocks():
    data = np.arange(2 * 3 * 34, dtype=np.uint8).reshape(2, -1)
    tensor = QTensor("", FORMATS["Q8_0"], (2, 96), data)
    part = tensor.part_of_columns(32, 96)
    assert part.shape == (2, 64)
    np.testing.assert_array_equal(part.data, data[:, 34:])
    np.testing.assert_array_equal(part.dequantize(), tensor.dequantize()[:, 32:])
    with pytest.raises(ValueError, match="divisible by 32"):
        tensor.part_of_columns(16, 96)
