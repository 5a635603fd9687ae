"""The whole machine on the simulator, and what is said where there is no card."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from kukri.runtime.config.from_gguf import config_from_gguf
from kukri.runtime.cuda import step_outputs
from kukri.runtime.cuda.driver.device import Device
from kukri.runtime.cuda.driver.errors import CudaUnavailable
from kukri.runtime.cuda.lowering.fusing import JoinedMatMul, fuse
from kukri.runtime.cuda.machine import CudaMachine
from kukri.runtime.cuda.pages import cache_type
from kukri.runtime.engine.cache import Batch, PageTable
from kukri.runtime.engine.engine import Engine
from kukri.runtime.engine.reading import TextReader
from kukri.runtime.engine.sampling.top_k import top_k_of
from kukri.runtime.engine.split import SplitMachine, split
from kukri.runtime.inspection.attention import AttentionChoice
from kukri.runtime.inspection.inspect import InspectOptions, inspect_ids
from kukri.runtime.model.cuda_device import open_cuda_device
from kukri.runtime.model.options import LoadOptions
from kukri.runtime.program.build import build_program
from kukri.runtime.reference.machine import ReferenceMachine
from kukri.runtime.weights.binding import Weights
from kukri.tests.open_program import open_program
from kukri.tests.script_modules import load_script

from .stand_in import StandInDevice, StandInKernels


@cache
def models():
    found = load_script("cuda_bench/models.py")
    found.SHAPES["tiny"] = (64, 1, 2, 1, 32, 64, 64, True)
    found.SHAPES["wide heads"] = (128, 2, 2, 1, 64, 64, 64, True)
    found.SHAPES["two"] = (64, 2, 2, 1, 32, 64, 64, True)
    return found


@pytest.fixture(scope="module")
def program():
    return models().random_model("tiny", "Q8_0")


@dataclass(frozen=True)
class Sized:
    """What an engine reads of a config."""

    vocab_size: int


def card() -> bool:
    try:
        Device().close()
    except CudaUnavailable:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("warpgroups", "product"), [(True, "batch_matmul_sm90"), (False, "prefill_matmul_sm80")]
)
def test_steps(program, feed, warpgroups, product):
    """A prompt in two steps, the second short enough for decode kernels, then a token; twice, the same."""
    ids = np.arange(21, dtype=np.int32) * 5 % 64
    expected = feed(ReferenceMachine(program, 1), PageTable(1), ids)
    device = StandInDevice()
    device.warpgroups = warpgroups
    machine = CudaMachine(program, 1, max_rows=17, device=device, kernels=StandInKernels(device))
    got = feed(machine, PageTable(1), ids, (17, 3, 1))
    p, q = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (expected, got))
    assert (np.exp(p) * (p - q)).sum(-1).mean() < 1e-4
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
    assert {product, "decode_matmul", "decode_attention"} <= set(device.launched)
    np.testing.assert_array_equal(feed(machine, PageTable(1), ids, (17, 3, 1)), got)


@pytest.mark.slow
def test_a_prompt_with_wide_heads(feed):
    """Attention with wgmma, whose result goes straight to the product behind it."""
    program = models().random_model("wide heads", "Q8_0")
    ids = np.arange(34, dtype=np.int32) * 5 % 64
    expected = feed(ReferenceMachine(program, 1), PageTable(1), ids)
    device = StandInDevice()
    machine = CudaMachine(program, 1, max_rows=17, device=device, kernels=StandInKernels(device))
    got = feed(machine, PageTable(1), ids, (17, 17))
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
    behind = device.launched.index("prefill_attention_sm90") + 1
    assert device.launched[behind] == "batch_matmul_sm90"


def test_kernels_of_all_short_steps_are_compiled_together(program):
    """Steps with drafted or forced ids have any number of rows: none of them stops to compile."""

    class Asking(StandInKernels):
        def compile_in_order(self, capacity, first, alike, later):
            for ask in (first, *later):
                ask()

    device = StandInDevice()
    machine = CudaMachine(program, 1, max_rows=64, device=device, kernels=Asking(device))
    known = list(device.kernels)
    assert known
    for n in range(1, 17):
        machine.plan(n, 1, n == 1)
        machine.plan(n, n, True)
    assert device.kernels == known


@pytest.mark.slow
def test_inspection(program):
    """In single launches, with copies in between: a step of prefill kernels, and one short enough for decode
    kernels."""
    shown = InspectOptions(lens=True, attention=AttentionChoice(), residual=True, logits=True)
    config = Sized(program.logits.width)
    ids = np.arange(19, dtype=np.int32) * 5 % 64
    device = StandInDevice()
    machine = CudaMachine(program, 1, max_rows=17, device=device, kernels=StandInKernels(device))
    got = inspect_ids(Engine(machine, PageTable(1), config), ids, shown)
    expected = inspect_ids(Engine(ReferenceMachine(program, 1), PageTable(1), config), ids, shown)
    scale = np.abs(expected.residual).max()
    np.testing.assert_allclose(got.residual, expected.residual, atol=0.03 * scale)
    np.testing.assert_allclose(got.attention[0].weights, expected.attention[0].weights, atol=0.02)
    np.testing.assert_allclose(got.attention[0].weights.sum(-1), 1, rtol=1e-5)
    p, q = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (expected.logits, got.logits))
    assert (np.exp(p) * (p - q)).sum(-1).mean() < 1e-3
    np.testing.assert_array_equal(got.lens.top.ids[-1, :, 0], got.top.ids[:, 0])
    np.testing.assert_allclose(got.lens.top.probabilities[-1], got.top.probabilities, rtol=1e-2)
    assert sum(got.cache.page_bytes.values()) == len(machine.read_page(0))


@pytest.mark.slow
@pytest.mark.parametrize("hidden", ["normed", "residual"])
def test_hidden_states_for_multi_token_prediction(hidden):
    """Those of all rows, whether all of them have logits or a few: of prefill kernels, and of decode ones."""
    metadata, tensors = models().random_tensors("tiny", "Q8_0")
    config = config_from_gguf(metadata, tensors)
    program = build_program(config, Weights(config, tensors), hidden=hidden)
    device = StandInDevice()
    cuda = CudaMachine(program, 1, max_rows=17, device=device, kernels=StandInKernels(device))
    found = []
    for machine in (cuda, ReferenceMachine(program, 1)):
        table, states = PageTable(1), []
        for first, n, chosen in ((0, 17, [16]), (17, 3, [0, 1, 2]), (20, 3, [1]), (23, 3, [0, 1, 2])):
            table.extend(0, n)
            rows = np.arange(n, dtype=np.int32)
            batch = Batch(rows + 3, np.zeros_like(rows), rows + first, np.array(chosen, np.int32))
            machine.step(batch, table)
            states.append(machine.read_boundary(n)[0].copy())
        found.append(np.concatenate(states))
    np.testing.assert_allclose(found[0], found[1], atol=0.03 * np.abs(found[1]).max())


@pytest.mark.slow
def test_hidden_states_of_texts(embedding_model):
    """Two texts of an encoder in a step, with token types, then one of a single token."""
    config, program = open_program(embedding_model("bert"), vectors=True)
    device = StandInDevice()
    cuda = CudaMachine(
        program, 4, max_rows=32, max_sequences=2, device=device, kernels=StandInKernels(device)
    )
    texts = [[*range(5, 17)], [7, 8, 9], [9]]
    types = [[0] * 7 + [1] * 5, [0, 1, 1], [1]]

    def read(machine):
        rows = [np.empty((len(text), config.hidden), np.float32) for text in texts]

        def take(index, position, values):
            rows[index][position : position + len(values)] = values

        table = PageTable(4, 2)
        TextReader(machine, table, texts[:2], "all", 32, program.both_ways, types[:2]).read(take)
        last = TextReader(machine, table, texts[2:], "all", 32, program.both_ways, types[2:])
        last.read(lambda index, *rest: take(2, *rest))
        return rows

    for got, expected in zip(read(cuda), read(ReferenceMachine(program, 4, max_sequences=2)), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [True, False])
def test_top_k(program, monkeypatch, mapped):
    """The top k are those of the logits, which a kernel or the driver copies to the host."""
    monkeypatch.setattr(step_outputs, "MAPPED_LOGITS", mapped << 20)
    device = StandInDevice()
    machine = CudaMachine(program, 1, max_rows=16, device=device, kernels=StandInKernels(device))
    rows = np.arange(4, dtype=np.int32)
    for k in (1, 3):
        table = PageTable(1)
        table.extend(0, 4)
        logits = machine.step(Batch(rows, rows * 0, rows, rows[2:]), table)
        expected = top_k_of(logits[:, :50].copy(), k)
        got = machine.top_k(Batch(rows, rows * 0, rows, rows[2:]), table, k, 50)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a.ids, b.ids)
            np.testing.assert_array_equal(a.logits, b.logits)
    steps = 4
    assert device.launched.count("copy_words") == steps + 2 * mapped


@pytest.mark.slow
def test_a_mixture_of_formats(feed):
    """q and k are joined where v has another format, and all three where they have the same."""
    found = models()
    metadata, tensors = found.random_tensors("two", "Q8_0")
    other = found.random_tensors("two", "Q4_0")[1]
    tensors["blk.0.attn_v.weight"] = other["blk.0.attn_v.weight"]
    config = config_from_gguf(metadata, tensors)
    program = build_program(config, Weights(config, tensors))
    joined = [[b.name for b in op.outs] for op in fuse(program) if isinstance(op, JoinedMatMul)]
    assert [names for names in joined if len(names) > 1] == [["q", "k"], ["q", "k", "v"]]
    ids = np.arange(5, dtype=np.int32)
    expected = feed(ReferenceMachine(program, 1), PageTable(1), ids)
    device = StandInDevice()
    machine = CudaMachine(program, 1, max_rows=16, device=device, kernels=StandInKernels(device))
    got = feed(machine, PageTable(1), ids, (4, 1))
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
    assert device.launched.count("two_matmuls") == 1  # in the step of one row


@pytest.mark.slow
def test_the_last_layers_of_a_program(feed):
    """What the front part hands over is uploaded, for one row and for several."""
    program = models().random_model("two", "Q8_0")
    ids = np.arange(5, dtype=np.int32)
    front, back = split(program, 1)
    expected = feed(ReferenceMachine(program, 1), PageTable(1), ids)
    device = StandInDevice()
    card = CudaMachine(back, 1, max_rows=16, device=device, kernels=StandInKernels(device))
    got = feed(SplitMachine(ReferenceMachine(front, 1), card), PageTable(1), ids, (4, 1))
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_a_batch_that_does_not_fit(program):
    device = StandInDevice()
    machine = CudaMachine(program, 1, max_rows=4, device=device, kernels=StandInKernels(device))
    rows = np.arange(5, dtype=np.int32)
    table = PageTable(1)
    table.extend(0, 5)
    with pytest.raises(ValueError, match="up to 4 rows"):
        machine.step(Batch(rows, rows * 0, rows, rows[:1]), table)
    machine.close()


@pytest.mark.skipif(card(), reason="there is a card")
def test_without_a_card(program):
    assert open_cuda_device(LoadOptions(), program, pytest.fail) is None
    assert open_cuda_device(LoadOptions("cpu"), program, pytest.fail) is None
    with pytest.raises(CudaUnavailable, match="--device cpu"):
        open_cuda_device(LoadOptions("cuda"), program, pytest.fail)


@pytest.mark.skipif(not card(), reason="there is no card")
def test_on_the_card(program, feed):
    ids = np.arange(40, dtype=np.int32) % 64
    expected = feed(ReferenceMachine(program, 1), PageTable(1), ids)
    machine = CudaMachine(program, 1)
    got = feed(machine, PageTable(1), ids, (20, 3, 1))
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
    machine.close()


def test_keys_and_values_are_of_one_type(program):
    """What only the CPU machine has is refused in one line."""
    for kv_type in ("q8_0/q4_0", "f16/q8_0", "q5_0"):
        with pytest.raises(ValueError, match=f"^the CUDA machine keeps keys and values alike.* {kv_type}$"):
            cache_type(program, kv_type)
